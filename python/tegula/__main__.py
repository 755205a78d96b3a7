# SPDX-License-Identifier: Apache-2.0
"""python -m tegula: the command-line program (run, replay, bench, explain, verify, doctor, pack)."""

import os
import sys


def main() -> None:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tegula")
    if not os.path.exists(program):
        sys.exit(
            "tegula: this package was built without the command-line program (it needs CLI11, fmt and nlohmann-json); "
            "`make build` in a checkout builds it"
        )
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
