"""The runner on two real GPUs: `rlharness run tests/gpu --gpus auto` runs this file where there are two."""

import os
from pathlib import Path

import pytest

from tests.gpu.inner_runs import need_gpus, run_inside

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("own_cache")  # for the histories of runs

WRITES_ITS_CARD = """
import os, pytest, torch

@pytest.mark.gpus(1)
def test_sees_one_card(pytestconfig):
    assert torch.cuda.device_count() == 1
    identity = str(torch.cuda.get_device_properties(0).uuid)
    (pytestconfig.rootpath / os.path.basename(__file__)).with_suffix(".card").write_text(identity)
"""


@pytest.mark.gpus(2)
def test_two_units_run_on_two_halves_of_a_lease(tmp_path: Path) -> None:
    need_gpus(2)
    code, summary = run_inside(tmp_path, {"test_a.py": WRITES_ITS_CARD, "test_b.py": WRITES_ITS_CARD}, "--gpus", "2")
    assert code == 0, summary
    gpus = {path.read_text() for path in tmp_path.glob("*.card")}
    assert len(gpus) == 2
    inherited = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    assert all(gpu in inherited for gpu in gpus) or not inherited
