"""The engine: training by reinforcement learning whose bits follow from its configuration on a machine."""
