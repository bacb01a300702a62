"""What harness and rlcore both need: digests, levels of determinism, errors with exit codes, redaction, safe files."""
