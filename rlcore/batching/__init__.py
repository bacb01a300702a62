"""Batches: from trajectories to padded rows, fixed microbatches and minibatches."""
