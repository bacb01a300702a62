"""The faults, by where in a step they lie. Each is the honest engine with one thing in it done as others did it."""
