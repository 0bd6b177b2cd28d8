"""The same work stepped by our pools and by their peers, measured side by side.

What runs in a measured process (``standalone`` and what it imports) needs no more than Gymnasium
and NumPy: a peer may sit in a virtual environment in which envpool_py is not installed.
"""
