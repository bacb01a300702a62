"""Weights on their way from the trainer to the sampler: digests, the sync and its receipt."""
