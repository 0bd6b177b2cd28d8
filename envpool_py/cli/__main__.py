"""``python -m envpool_py.cli``."""

import sys

from envpool_py.cli import main

if __name__ == "__main__":
    sys.exit(main())
