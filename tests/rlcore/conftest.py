"""MKL computes in the mode of level invariant from the collection on: it keeps the mode of its first work."""

import os

from rlcore.numerics.product import hold_mkl_mode

hold_mkl_mode(os.environ)
