"""Runs Triton's kernels on the host, in Triton's interpreter, which needs no GPU.

Triton comes with torch's builds for CUDA alone. CI installs it into a directory of its own, which TRITON_DIRECTORY
names: in the tests' own environment, torch would find it and compile with it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
TRITON_DIRECTORY = "RLHARNESS_TESTS_TRITON"


def run_interpreted(script: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, which chooses the interpreter before the import. Skip without Triton."""
    directory = os.environ.get(TRITON_DIRECTORY, "")
    if not directory and find_spec("triton") is None:
        pytest.skip(f"Triton is not installed, and {TRITON_DIRECTORY} names no directory that has it")
    paths = [str(ROOT), *sys.path, *([directory] if directory else [])]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-W", "ignore", str(script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@contextmanager
def products_in_order() -> Iterator[None]:
    """Let the interpreter add a product's terms in fp32 from the first to the last, as a kernel is written.

    Its own hands blocks to numpy, whose order depends on the block, and cannot read bf16.
    """
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(_: Any, a: Any, b: Any, total: Any, *__: Any) -> Any:
        x, y, result = _wide(a), _wide(b), total.data.copy()
        for k in range(x.shape[1]):
            result += x[:, k : k + 1] * y[k : k + 1]
        return TensorHandle(result, total.dtype.scalar)

    own = InterpreterBuilder.create_dot
    InterpreterBuilder.create_dot = create_dot
    try:
        yield
    finally:
        InterpreterBuilder.create_dot = own


def _wide(x: Any) -> Any:
    is_bf16 = x.dtype.scalar.name == "bf16"
    return (x.data.astype(np.uint32) << 16).view(np.float32) if is_bf16 else x.data.astype(np.float32)
