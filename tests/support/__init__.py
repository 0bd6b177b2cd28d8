"""Envs, the pools they are tried in, and what compares, counts and waits."""
