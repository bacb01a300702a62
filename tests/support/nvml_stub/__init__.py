"""A pretended NVIDIA driver: `libnvidia-ml.so.1`, built from stub.c, that shows the GPUs a text file describes."""
