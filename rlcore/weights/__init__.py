"""Weights on their way from the trainer to a weight target: digests, transports, the sync and its receipt."""
