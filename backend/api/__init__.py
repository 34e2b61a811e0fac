"""HTTP in, events out: one module per API family."""
