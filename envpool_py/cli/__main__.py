"""``python -m envpool_py.cli``."""

from __future__ import annotations

import sys

from envpool_py.cli import main

if __name__ == "__main__":
    sys.exit(main())
