"""A run with vLLM is the run with the local sampler: all recorded bits, also if one resumes what the other began."""

from pathlib import Path
from typing import Any

import pytest

from tests.rlcore.training.recorded import Digests, Lost, config, first_difference, recorded, two_stages
from tests.support.vllm_engines import need_vllm

need_vllm()
TRAINING: dict[str, Any] = {"num_steps": 5, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4}
PERTURBED: dict[str, Any] = {
    "sampler": {"name": "vllm", "block_size": 2, "num_blocks": 24, "max_batched_tokens": 16},
    "runtime": {"concurrency": 5, "arrival_seed": 7, "preempt_every": 3, "sampling_threads": 2},
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Digests:
    return recorded(config(training=TRAINING), tmp_path_factory.mktemp("local"))


def test_every_recorded_bit_is_that_of_the_local_sampler(local: Digests, tmp_path: Path) -> None:
    found = recorded(config(training=TRAINING, **PERTURBED), tmp_path)
    assert first_difference(local, found) is None
    assert found.leaves.keys() == local.leaves.keys()


def test_one_resumes_what_the_other_began(local: Digests, tmp_path: Path) -> None:
    vllm: Any = {"sampler": {"name": "vllm"}}
    begins: Any
    resumes: Any
    for name, begins, resumes in (("vllm first", vllm, {}), ("vllm second", {}, vllm)):
        often = {"checkpoint_every": 1}
        with pytest.raises(Lost):
            recorded(config(training=TRAINING, output=often, **begins), tmp_path / name, stop_after=2)
        output = {"resume": str(tmp_path / name)}
        found = recorded(config(training=TRAINING, output=output, **resumes), tmp_path / f"{name}, resumed")
        assert {step for step, *_ in found.leaves} == {2, 3, 4}
        assert first_difference(local, found) is None


def test_ppo_is_the_same_too(tmp_path: Path) -> None:
    ppo: Any = {
        "algorithm": {"name": "ppo"},
        "training": {**TRAINING, "num_steps": 2},
        "sampling": {"temperature": 0.8},
    }
    local = recorded(config(**ppo), tmp_path / "local")
    found = recorded(config(**ppo, sampler={"name": "vllm"}), tmp_path / "vllm")
    assert first_difference(local, found) is None and found.leaves


def test_two_stages_are_the_same_too(tmp_path: Path) -> None:
    local = recorded(two_stages(), tmp_path / "local")
    found = recorded(two_stages(**PERTURBED), tmp_path / "vllm")
    assert first_difference(local, found) is None and found.leaves.keys() == local.leaves.keys()


def test_without_recipes_the_trainer_does_not_match(
    local: Digests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the level itself is what makes them equal."""
    from contextlib import nullcontext

    from rlcore.errors import LevelError

    monkeypatch.setattr("rlcore.determinism.invariant", lambda invariance_report: nullcontext())
    monkeypatch.setattr("rlcore.checks.check_level", lambda level: None)
    with pytest.raises(LevelError, match="the trainer's log-probability"):
        recorded(config(training=TRAINING, sampler={"name": "vllm"}, runtime={"concurrency": 3}), tmp_path)


def test_adapters_are_the_same_too(tmp_path: Path) -> None:
    adapted: Any = {"model": {"lora": {"rank": 4, "alpha": 8.0}}, "training": {**TRAINING, "num_steps": 2}}
    local = recorded(config(**adapted), tmp_path / "local")
    found = recorded(config(**adapted, **PERTURBED), tmp_path / "vllm")
    assert first_difference(local, found) is None and found.leaves.keys() == local.leaves.keys()
