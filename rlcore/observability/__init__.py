"""Metrics, phases and logs of a run."""
