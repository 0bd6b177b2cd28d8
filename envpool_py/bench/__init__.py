"""Measure ways to step many copies of one env, and find the fastest on this machine."""
