"""Supervised process trees: supervisors and fork server, containment, signals, scratch, ports, environments."""
