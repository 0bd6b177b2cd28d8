"""The tests of the wrappers; a package so that worker processes can import their envs by name."""
