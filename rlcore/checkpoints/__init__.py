"""Checkpoints: saving a run and resuming it."""
