"""Samplers: what draws completions, with weights of its own that the trainer writes."""
