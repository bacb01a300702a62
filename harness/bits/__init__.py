"""The leaf below harness and rlcore: digests, levels of determinism, errors with exit codes, redaction, safe files."""
