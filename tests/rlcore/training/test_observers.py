"""Observers are no part of what is computed: a run has the same bits without them. Each check sees its own fault."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.bits.tensor_digests import tensor_digests
from rlcore.checks.match_checks import MatchChecks
from rlcore.checks.observers import (
    CHECKS,
    AdvantageChecks,
    GeneratorChecks,
    LevelChecks,
    MinibatchChecks,
    RolloutChecks,
)
from rlcore.config import RunConfig
from rlcore.data.microbatches import Microbatch
from rlcore.entrypoint import train
from rlcore.errors import RlcoreError
from rlcore.log import NullRecorder
from rlcore.models.decoder import Decoder
from rlcore.observability.observers import Observer, Observers
from rlcore.trainers.scoring import Scored, score
from tests.rlcore.training.recorded import Digests, config, recorded

SHORT = {"num_steps": 3, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4}


def state_digests(of: RunConfig, directory: Path, recorder: Any) -> dict[str, str]:
    """Weights and optimizer state of all models at the end of a run."""
    state = train(of, level="invariant", directory=directory, recorder=recorder)
    found: dict[str, str] = {}
    for trainer in state.trainers:
        found |= {f"{trainer.name} {name}": value for name, value in tensor_digests(trainer.state()).items()}
    return found


@pytest.mark.parametrize(
    "of",
    [
        pytest.param(
            config(algorithm={"name": "grpo", "kl_coef": 0.02}, training={**SHORT, "num_minibatches": 2}),
            id="grpo",
            marks=pytest.mark.full,
        ),
        pytest.param(
            config("ppo", algorithm={"name": "ppo", "kl_coef": 0.05, "kl_target": 0.1}, training=SHORT), id="ppo"
        ),
    ],
)
def test_a_run_without_observers_has_the_same_bits(
    of: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Digests()
    watched = state_digests(of, tmp_path / "watched", recorder)
    assert recorder.curve.keys() == {0, 1, 2}
    monkeypatch.setattr("rlcore.controllers.setup.Observers", lambda *given: Observers())
    assert state_digests(of, tmp_path / "alone", Digests()) == watched


def test_norms_rates_and_the_first_evaluation_are_recorded(tmp_path: Path) -> None:
    leaves = recorded(config("ppo", algorithm={"name": "ppo", "kl_coef": 0.05}, training=SHORT), tmp_path).leaves
    for step, trainer in product(range(3), ("policy", "critic")):
        assert (step, "backward", f"{trainer}.gradient_norm", 0) in leaves
        assert (step, "optimizer", f"{trainer}.learning_rate", 0) in leaves
    assert [(step, phase, name) for step, phase, name, _ in leaves if name.startswith("evaluation.")] == [
        (0, "rollout", "evaluation.prompt_ids"),
        (0, "rollout", "evaluation.tokens"),
        (0, "reward", "evaluation.rewards"),
    ]


def backwards(sampler: Any, wanted: Any, runtime: Any) -> Any:
    return list(sampler.sample(wanted))[::-1]


def upside_down(rewards: torch.Tensor, *given: Any) -> torch.Tensor:
    return -rewards


def twice_the_first(num_items: int, *given: Any) -> list[int]:
    return [0, *range(num_items - 1)]


def off_by_a_bit(policy: Decoder, microbatch: Microbatch, temperature: float) -> Scored:
    found = score(policy, microbatch, temperature)
    if not policy.embedding.requires_grad:  # the reference
        return found
    return found._replace(logprobs=found.logprobs * (1 + 2**-20))


def drawn(state: Any, step: int) -> Any:
    torch.rand(1)
    return state.task.train[:4]


def less_precise(state: Any, directory: Path, step: int) -> None:
    """From the first step to the last, whose end is checked by the level itself."""
    torch.set_float32_matmul_precision("medium" if step < SHORT["num_steps"] else "highest")


@pytest.mark.full
@pytest.mark.parametrize(
    ("check", "fault", "said"),
    [
        (RolloutChecks, ("rlcore.recipes.rollout.collect", backwards), "completion order: expected sample"),
        (AdvantageChecks, ("rlcore.algorithms.advantages.grpo", upside_down), "advantages of group"),
        (MinibatchChecks, ("rlcore.data.minibatches.permutation", twice_the_first), "is in an epoch"),
        (GeneratorChecks, ("rlcore.recipes.rollout.prompts_of", drawn), "has drawn from the generator"),
        (MatchChecks, ("rlcore.recipes.policy_pass.score", off_by_a_bit), "the trainer's log-probability"),
        (LevelChecks, ("rlcore.controllers.synchronous.save_checkpoint", less_precise), "'medium' precision"),
    ],
    ids=lambda given: given.__name__ if isinstance(given, type) else "",
)
def test_a_fault_is_seen_by_its_check_and_by_no_other(
    check: type[Observer], fault: tuple[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = config(
        algorithm={"name": "grpo", "kl_coef": 0.02},
        training={**SHORT, "num_minibatches": 2},
        output={"checkpoint_every": 1},
    )
    monkeypatch.setattr(*fault)
    before = torch.get_float32_matmul_precision()
    try:
        with pytest.raises(RlcoreError, match=said):
            train(of, level="invariant", directory=tmp_path / "checked", recorder=NullRecorder())
        torch.set_float32_matmul_precision(before)
        others = tuple(build for build in CHECKS["invariant"] if not isinstance(build(), check))
        monkeypatch.setattr("rlcore.checks.observers.CHECKS", {**CHECKS, "invariant": others})
        train(of, level="invariant", directory=tmp_path / "unchecked", recorder=NullRecorder())
    finally:
        torch.set_float32_matmul_precision(before)
