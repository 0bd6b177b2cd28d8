"""Which env is doing what: send requests, wait for results, cancel, recover."""
