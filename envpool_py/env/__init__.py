"""One env and its row: requests, memory of rows, the step loop."""
