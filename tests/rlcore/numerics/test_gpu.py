"""The kernels of level invariant without a GPU: their properties in Triton's interpreter, and a compiler's word."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.triton_interpreter import ROOT, run_interpreted

PROPERTIES = Path(__file__).with_name("gpu_properties.py")


@pytest.mark.full
def test_the_kernels_keep_the_bits_of_a_row_in_the_interpreter() -> None:
    done = run_interpreted(PROPERTIES)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_a_kernel_compiles_for_a_gpu_that_is_not_here() -> None:
    """One capability, and one tile of products, by Triton's own ptxas."""
    if find_spec("triton") is None:
        pytest.skip("Triton, whose wheel has the compiler, is not installed")
    program = (
        "import torch; from rlcore.numerics import gpu; from rlcore.numerics.level import following;"
        "from rlcore.numerics.probe import GPU_STRATEGIES; from tests.gpu.compile_table import compiling\n"
        "x = torch.empty(64, 64, dtype=torch.bfloat16, device='meta')\n"
        "with following(GPU_STRATEGIES[1]), compiling(90) as found: gpu.product(x, x)\n"
        "((each,),) = found.values(); print(each.kernel, each.instructions)"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["product_tiles", "64x32", "wgmma"], done.stdout + done.stderr
