"""``python -m envpool_py``: the command line."""

import importlib

raise SystemExit(importlib.import_module("envpool_py.cli").main())
