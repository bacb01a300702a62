"""Whether MKL is strict in a process: a row has the bits it has alone, and a product those of one thread."""

import pytest
import torch

from rlcore.numerics import product as module
from rlcore.numerics.probe import num_threads

needs_strict_mkl = pytest.mark.skipif(
    module.LIBRARY == "oneDNN" or not module.HAS_MKL, reason="products are not MKL's here, or not in its strict mode"
)
ROWS_ALONE = "from tests.rlcore.numerics.rows_alone import rows_alone; print(rows_alone())"


def rows_alone() -> str:
    """Two words, each "True" where that holds."""
    draw = torch.Generator().manual_seed(0)
    x, weight, grad = (torch.randn(shape, generator=draw) for shape in ((320, 384), (512, 384), (320, 512)))
    with num_threads(1):
        whole, outer = module.product(x, weight), grad.t() @ x
        alone = all(torch.equal(module.product(x[:rows], weight), whole[:rows]) for rows in (1, 2, 4, 12, 16, 100))
    with num_threads(2):
        same = torch.equal(module.product(x, weight), whole) and torch.equal(grad.t() @ x, outer)
    return f"{alone} {same}"
