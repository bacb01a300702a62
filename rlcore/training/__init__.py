"""Training: from completions to weights."""
