"""``python -m envpool_py``: the command line."""

import runpy

runpy.run_module("envpool_py.cli", run_name="__main__", alter_sys=True)
