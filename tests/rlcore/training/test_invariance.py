"""At level invariant twenty steps have the same bits under every perturbation; another seed is another run.

Everything recorded is compared: tokens, log-probabilities, rewards, advantages, losses, gradients, weights and the
optimizer's state of every step. Perturbations, and whether and where the process is lost and resumed, are drawn by
hypothesis; RLHARNESS_LONG=1 draws 300 in place of 4.
"""

import os
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.config import RunConfig
from rlcore.entrypoint import train
from rlcore.errors import LevelError
from tests.rlcore.training.recorded import Digests, Lost, config, first_difference, recorded
from tests.support.recorded_programs import run
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
    crash_after = random.Random(variant).randrange(3, 18)
    of, first = lost_and_resumed(VARIANTS[variant], crash_after, 3, tmp_path / "lost", undisturbed(variant))
    found = recorded(of, tmp_path / "resumed")
    assert 0 < first == min(step for step, *_ in found.leaves), "it has gone on, not begun anew"
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
        done = run(sys.executable, "-c", code, str(tmp_path / seed), env={"PYTHONHASHSEED": seed})
        assert done.output == expected, done.errors


def test_without_recipes_the_sampler_does_not_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.determinism.invariant", lambda invariance_report: nullcontext())
    monkeypatch.setattr("rlcore.checks.check_level", lambda level: None)
    with pytest.raises(LevelError, match="the trainer's log-probability"):
        recorded(perturbed("grpo", concurrency=3), tmp_path)


@pytest.mark.full
def test_another_seed_is_another_run(undisturbed: Callable[[str], Digests], tmp_path: Path) -> None:
    found = recorded(VARIANTS["grpo"].model_copy(update={"seed": 8}), tmp_path)
    leaf = first_difference(undisturbed("grpo"), found)
    assert leaf is not None
    assert leaf[:3] == (0, "optimizer", "warm_start.weights_digest"), "the weights that it begins with"
