"""A pretended NVIDIA driver: `libnvidia-ml.so.1`, built from stub.c, that shows the cards a text file describes."""
