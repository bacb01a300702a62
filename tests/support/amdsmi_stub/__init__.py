"""A pretended ROCm: the Python package amdsmi where ROCm keeps it, which shows the GPUs a JSON file describes."""
