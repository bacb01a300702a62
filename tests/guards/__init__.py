"""What a redesign must not change: run by `tests/guards/run`."""
