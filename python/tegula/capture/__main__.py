# SPDX-License-Identifier: Apache-2.0
import sys

try:
    from . import main
except ImportError as error:
    sys.exit(f"tegula.capture: error: {error}; pip install torch transformers")
sys.exit(main())
