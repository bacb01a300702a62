"""Norm, SwiGLU and attention in C, whose bits follow from C and IEEE 754 alone; see lanes.h.

Sums have one order, which is written down: that of the numbers of a row, or of the keys that a query sees. So a row's
bits are those it has alone on any processor, by whatever compiler, and nothing has to be looked at for it. Products are
not here: what stands around them is what a small model's time goes to.
"""
