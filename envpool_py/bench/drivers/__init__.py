"""How each library's pools are stepped in their own natural way, one module per library.

A driver's function takes the job, the env_fns and batches of actions, and returns the pool at work.
"""
