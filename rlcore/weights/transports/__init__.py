"""Transports: how the trainer's weights travel to a weight target."""
