"""Programs that a recorder could break on a GPU alone: each prints and does the same when it is recorded.

Forks and late variables need CUDA not initialised; reentrant checkpoints and optimizers within backward run in the
autograd engine's thread of the GPU; CUDA graphs of torch.compile reuse the memory of a loss that somebody still holds.
"""

import sys
from pathlib import Path

import pytest

from harness.trace import read_trace
from tests.support.recorded_programs import record, run

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpus(1),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.parametrize(
    ("name", "num_steps"), [("forks", 0), ("late", 0), ("reentrant", 3), ("in_backward", 3), ("graph_trees", 6)]
)
def test_a_program_does_the_same_when_it_is_recorded(name: str, num_steps: int, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / f"{name}.py")]
    plain = run(*command)
    assert plain.exit_code == 0, plain.errors
    # A program without a step leaves no trace, which is reported.
    done = record(tmp_path / "a", command, exit_code=0 if num_steps else 12)
    assert done.output == plain.output
    assert "recording ended" not in done.errors
    assert "live" not in done.errors, "CUDA graphs found outputs that are still in use"
    if num_steps:
        trace = read_trace(tmp_path / "a")
        assert (trace.gaps, len(trace.steps)) == ((), num_steps)
