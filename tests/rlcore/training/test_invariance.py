"""At level invariant twenty steps have the same bits under every perturbation, and not when a mechanism is taken out.

Everything recorded is compared: tokens, log-probabilities, rewards, advantages, losses, gradients, weights and the
optimizer's state of every step. Perturbations, and whether and where the process is lost and resumed, are drawn by
hypothesis; RLHARNESS_LONG=1 draws 300 in place of 4.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlcore.batching.minibatches as minibatches_module
import rlcore.recipes.rollout as rollouts_module
import rlcore.trainers.local as update_module
from rlcore.batching.microbatches import Microbatch, microbatches_by_budget
from rlcore.config import RunConfig
from rlcore.entrypoint import train
from rlcore.errors import CheckpointError, LevelError, StepError
from rlcore.numerics.tree_sum import TreeSum
from rlcore.samplers.torch_sampler import TorchSampler
from tests.rlcore.training.recorded import Digests, Lost, config, first_difference, recorded
from tests.support.run_configs import with_section

IS_LONG = bool(os.environ.get("RLHARNESS_LONG"))
NUM_EXAMPLES = 300 if IS_LONG else 4
TIMEOUT_S = 3 * 3600 if IS_LONG else 300
VARIANTS: dict[str, RunConfig] = {
    "grpo": config(),
    "grpo, minibatches, epochs, a reference": config(
        algorithm={"name": "grpo", "kl_coef": 0.02, "advantage": "rloo", "entropy_coef": 0.01},
        training={"num_steps": 20, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 2, "num_minibatches": 2,
                  "num_epochs": 2},
    ),
    "ppo": config("ppo", algorithm={"name": "ppo", "kl_coef": 0.05, "kl_target": 0.1, "num_critic_warmup_steps": 2}),
}  # fmt: skip


def each(*in_default_tier: str) -> Any:
    """All variants; those that are not named are in the full tier only."""
    return [pytest.param(name, marks=[] if name in in_default_tier else [pytest.mark.full]) for name in VARIANTS]


perturbations = st.fixed_dictionaries(
    {
        "arrival_seed": st.integers(0, 2**32),
        "concurrency": st.integers(1, 16),
        "preempt_every": st.sampled_from([0, 1, 2, 5]),
        "sampling_threads": st.sampled_from([1, 2]),
        "training_threads": st.sampled_from([1, 2]),
        "token_budget": st.sampled_from([64, 80, 200, 16_384]),
        "world_size": st.sampled_from([1, 2, 4]),
    }
)
losses = st.none() | st.tuples(st.integers(0, 18), st.integers(1, 4))
"""The step at whose end the process is lost, and how often a checkpoint is written; none: it runs through."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Digests]:
    """A variant's own run, computed once."""
    found: dict[str, Digests] = {}

    def of(variant: str) -> Digests:
        if variant not in found:
            found[variant] = recorded(VARIANTS[variant], tmp_path_factory.mktemp("undisturbed"))
        return found[variant]

    return of


def perturbed(variant: str, **perturbation: Any) -> RunConfig:
    return with_section(VARIANTS[variant], "runtime", perturbation)


# --------------------------------------------------------------------------------------------------------- it holds


@pytest.mark.full
@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("variant", each("grpo"))
@settings(max_examples=NUM_EXAMPLES, derandomize=True)
@given(perturbation=perturbations, lost=losses)
def test_perturbations_move_no_bit(
    variant: str,
    perturbation: dict[str, Any],
    lost: tuple[int, int] | None,
    undisturbed: Callable[[str], Digests],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    of, first = perturbed(variant, **perturbation), 0
    if lost is not None:
        of, first = lost_and_resumed(of, *lost, tmp_path_factory.mktemp("lost"), undisturbed(variant))
    found = recorded(of, tmp_path_factory.mktemp("perturbed"))
    assert first_difference(undisturbed(variant), found) is None
    assert found.leaves.keys() == {leaf for leaf in undisturbed(variant).leaves if leaf[0] >= first}
    assert found.curve.keys() == set(range(first, 20))


def lost_and_resumed(
    of: RunConfig, lost_at: int, checkpoint_every: int, directory: Path, undisturbed: Digests
) -> tuple[RunConfig, int]:
    """The run that goes on after the loss, and its first step; from the beginning, where nothing had been kept."""
    of = with_section(of, "output", {"checkpoint_every": checkpoint_every})
    before = Digests(stop_after=lost_at)
    with pytest.raises(Lost):
        train(of, level="invariant", directory=directory, recorder=before)
    assert first_difference(undisturbed, before) is None
    first = lost_at // checkpoint_every * checkpoint_every
    return (with_section(of, "output", {"resume": str(directory)}), first) if first else (of, 0)


@pytest.mark.full
@pytest.mark.parametrize("variant", each("grpo", "ppo"))
def test_a_crash_at_any_step_and_a_resume_move_no_bit(
    variant: str, undisturbed: Callable[[str], Digests], tmp_path: Path
) -> None:
    crash_after = random.Random(variant).randrange(2, 18)
    of = with_section(VARIANTS[variant], "output", {"checkpoint_every": 3})
    with pytest.raises(Lost):
        recorded(of, tmp_path / "lost", stop_after=crash_after)
    again = with_section(of, "output", {"resume": str(tmp_path / "lost")})
    found = recorded(again, tmp_path / "resumed")
    first = min(step for step, *_ in found.leaves)
    assert 0 < first <= crash_after, "it has gone on, not begun anew"
    assert max(found.curve) == 19
    assert first_difference(undisturbed(variant), found) is None


@pytest.mark.full
def test_the_hash_seed_moves_no_bit(undisturbed: Callable[[str], Digests], tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, torch; torch.set_num_threads(1)\n"
        "from tests.rlcore.training.recorded import recorded, config\n"
        "for leaf, digest in recorded(config(), pathlib.Path(sys.argv[1])).leaves.items(): print(leaf, digest)"
    )
    expected = "".join(f"{leaf} {value}\n" for leaf, value in undisturbed("grpo").leaves.items())
    for seed in ("1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / seed)], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == expected


# ---------------------------------------------------------------------------- and breaks without each of its mechanisms


def moved(variant: str, tmp_path: Path, *, level: str = "invariant", **perturbation: Any) -> str | None:
    """The phase of the first difference between a run and a perturbed one, both as the mechanisms are now."""
    one = recorded(VARIANTS[variant], tmp_path / "one", level=level)
    other = recorded(perturbed(variant, **perturbation), tmp_path / "other", level=level)
    leaf = first_difference(one, other)
    return leaf and leaf[1]


@pytest.mark.full
def test_without_recipes_concurrency_moves_logprobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.numerics.product.LIBRARY", "oneDNN")  # MKL's strict mode is a remedy of its own
    assert moved("grpo", tmp_path, level="deterministic", concurrency=1) == "rollout"


def test_without_recipes_the_sampler_does_not_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.determinism.invariant", lambda invariance_report: nullcontext())
    monkeypatch.setattr("rlcore.checks.observers.check_level", lambda level: None)
    with pytest.raises(LevelError, match="the trainer's log-probability"):
        recorded(perturbed("grpo", concurrency=3), tmp_path)


@pytest.mark.full
def test_without_canonical_order_arrival_moves_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_they_come(sampler: TorchSampler, wanted: Any, runtime: Any) -> Any:
        if not runtime.arrival_seed:
            return sampler.sample(wanted)
        return sampler.sample(random.Random(runtime.arrival_seed).sample(wanted, len(wanted)))

    monkeypatch.setattr(rollouts_module, "collect", as_they_come)
    with pytest.raises(StepError, match="completion order: expected sample"):
        recorded(perturbed("grpo", arrival_seed=3), tmp_path / "looked at")
    monkeypatch.setattr("rlcore.checks.observers.check_trajectories", lambda *given: None)
    assert moved("grpo", tmp_path, arrival_seed=3) == "rollout"


@pytest.mark.full
def test_with_noise_of_a_generator_arrival_moves_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = iter(range(10**9))
    sample = TorchSampler.sample

    def with_keys_of_arrival(self: TorchSampler, requests: Any, **others: Any) -> Any:
        return sample(self, [replace(request, key=next(keys)) for request in requests], **others)

    monkeypatch.setattr(TorchSampler, "sample", with_keys_of_arrival)
    monkeypatch.setattr("rlcore.checks.observers.check_trajectories", lambda *given: None)
    assert moved("grpo", tmp_path, arrival_seed=3) == "rollout"


@pytest.mark.full
def test_without_fixed_microbatches_the_budget_moves_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_budget(batch: Any, samples: Any, width: int, *, token_budget: int) -> list[Microbatch]:
        return microbatches_by_budget(batch, samples, token_budget=token_budget)

    monkeypatch.setattr(minibatches_module, "fixed_microbatches", by_budget)
    assert moved("grpo", tmp_path, token_budget=64) in ("loss", "backward"), "of the warm start already"


class LeftFold(TreeSum):
    """Adds lanes in the order in which they come, as `grad +=` does."""

    def _put(self, place: Any, value: Any) -> None:
        held = self._nodes.pop((0, 0), None)
        self._nodes[0, 0] = value if held is None else held + value

    def total(self) -> Any:
        return self._nodes.get((0, 0))


@pytest.mark.full
def test_without_the_tree_workers_move_gradients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_module, "TreeSum", LeftFold)
    assert moved("grpo", tmp_path, world_size=2) == "backward"


@pytest.mark.full
def test_without_the_optimizers_state_a_resume_moves_weights(
    undisturbed: Callable[[str], Digests], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore.trainers.local.restore_optimizer", lambda optimizer, named, state: None)
    of = with_section(VARIANTS["grpo"], "output", {"checkpoint_every": 4})
    with pytest.raises(Lost):
        recorded(of, tmp_path / "lost", stop_after=9)
    resumed = with_section(of, "output", {"resume": str(tmp_path / "lost")})
    with pytest.raises(CheckpointError, match="optimizer of the policy differ"):
        recorded(resumed, tmp_path / "looked at")
    monkeypatch.setattr("rlcore.controllers.setup.check_state", lambda *given: None)
    leaf = first_difference(undisturbed("grpo"), recorded(resumed, tmp_path / "resumed"))
    assert leaf is not None
    assert leaf[:2] == (8, "optimizer")


@pytest.mark.full
def test_without_keyed_order_a_resume_moves_the_prompts(
    undisturbed: Callable[[str], Digests], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts by a counter that a resumed process begins anew."""
    of = with_section(VARIANTS["grpo"], "output", {"checkpoint_every": 4})
    with pytest.raises(Lost):
        recorded(of, tmp_path / "lost", stop_after=9)
    asked = iter(range(10**9))
    prompts_of = rollouts_module.prompts_of
    monkeypatch.setattr(rollouts_module, "prompts_of", lambda state, step: prompts_of(state, next(asked)))
    found = recorded(with_section(of, "output", {"resume": str(tmp_path / "lost")}), tmp_path / "resumed")
    leaf = first_difference(undisturbed("grpo"), found)
    assert leaf is not None
    assert leaf[:2] == (8, "rollout")


@pytest.mark.full
def test_another_seed_is_another_run(undisturbed: Callable[[str], Digests], tmp_path: Path) -> None:
    found = recorded(VARIANTS["grpo"].model_copy(update={"seed": 8}), tmp_path)
    leaf = first_difference(undisturbed("grpo"), found)
    assert leaf is not None
    assert leaf[:3] == (0, "optimizer", "warm_start.weights_digest"), "the weights that it begins with"
