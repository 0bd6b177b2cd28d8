"""Record what a pool does, replay a record, and restore envs that failed."""
