"""Supervised process trees: supervisors, containment, signals, scratch, ports, environments."""
