"""Record what a pool does, and read records."""
