"""Below everything: errors with codes, exit codes, clock, text, redaction, files that may be hostile."""
