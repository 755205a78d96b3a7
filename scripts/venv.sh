#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Python environment. Usage: venv.sh <folder> <requirements file>...
# Quick when the files have not changed since it was made.
set -eu
cd "$(dirname "$0")/.."
folder=$1
shift
wanted=$(cat "$@")
[ "$(cat "$folder/requirements" 2>/dev/null)" != "$wanted" ] || exit 0
python3 -m venv --clear "$folder"
arguments=()
for file in "$@"; do arguments+=(-r "$file"); done
# Compiling every module of torch to bytecode takes longer than the tests that import it.
"$folder/bin/pip" install -qq --no-input --no-compile --disable-pip-version-check "${arguments[@]}"
echo "$wanted" >"$folder/requirements"
