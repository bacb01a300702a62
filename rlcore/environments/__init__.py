"""Environments: the trajectories that samplers produce and training consumes."""
