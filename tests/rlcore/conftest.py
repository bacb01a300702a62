"""MKL is asked to be strict when tests are collected: it reads its mode once, at the first product of a process."""

import os

from rlcore.numerics.product import be_strict

be_strict(os.environ)
