"""Products, norms, SwiGLU, attention and whole layers in C, whose bits follow from C and IEEE 754 alone; see `lanes.h`.

Sums have one order, which is written down: that of the numbers of a row, of what a product is summed over, or of the
keys that a query sees. So a row's bits are those it has alone, on any processor and by any compiler, and no
probe is needed.
"""
