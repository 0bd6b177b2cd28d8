"""The tests; a package so that worker processes can import its envs by name."""
