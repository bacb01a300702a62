"""MKL is asked to be strict when tests are collected, for as cheap a strategy as in a run.

Where something computed before, in an import say, it is not, and tests hold with a dearer one.
"""

import os

from rlcore.numerics.product import be_strict

be_strict(os.environ)
