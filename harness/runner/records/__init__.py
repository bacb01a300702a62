"""Records of runs: their state while they run, their results read back, and the history of results."""
