"""Trainers: gradients of microbatches, their sum, and the optimizer."""
