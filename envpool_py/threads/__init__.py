"""Envs in threads of the calling process, as one more kind of host."""
