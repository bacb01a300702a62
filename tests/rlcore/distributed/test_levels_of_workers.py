"""A run whose models are in other processes starts only if its level holds in each of them."""

import multiprocessing
from pathlib import Path

import pytest

from rlcore.controllers import deployment
from rlcore.entrypoint import train
from rlcore.errors import LevelError
from rlcore.trace import NullRecorder
from tests.rlcore.training.recorded import config

pytestmark = pytest.mark.full

OF = config("grpo", deployment={"backend": "processes", "num_ranks": 1}, training={"num_steps": 1})


@pytest.mark.timeout(300)
def test_a_process_that_differs_ends_the_run_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    monkeypatch.setattr(deployment, "worker_environment", lambda level, environ: {})
    with pytest.raises(LevelError) as caught:
        train(OF, level="invariant", directory=tmp_path, recorder=NullRecorder())
    assert "process models, role policy" in caught.value.what
    assert "rank 0" in caught.value.what
    assert "NVTE_FLASH_ATTN is 0" in caught.value.what
    assert not (tmp_path / "metrics.jsonl").exists()
    assert multiprocessing.active_children() == []


def test_variables_that_the_level_does_not_allow_start_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "CollnetDirect")
    with pytest.raises(LevelError, match="NCCL_ALGO=CollnetDirect"):
        train(OF, level="invariant", directory=tmp_path, recorder=NullRecorder())
