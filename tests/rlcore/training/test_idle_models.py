"""Models that leave their device: in files while completions are sampled, back before they are used, bits compared."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import rlcore.train as engine
from rlcore.data.trajectory import Trajectory
from rlcore.errors import PlacementError
from rlcore.train import TrainState, make_step
from rlcore.trainers.trainer import Trainer
from rlcore.types import SampleRequest
from tests.rlcore.training.recorded import config
from tests.rlcore.training.test_steps import Kept, state_of
from tests.support.mapped_memory import mapped_files

MODELS = ("policy", "critic", "reference")


def is_in_files(model: nn.Module, directory: Path) -> bool:
    """Whether the largest parameter has its memory in a file of the directory."""
    largest = max(model.parameters(), key=lambda parameter: parameter.nbytes)
    return any(name.startswith(str(directory)) for name in mapped_files(largest))


def started(directory: Path, names: tuple[str, ...]) -> TrainState:
    section = {"offload": names, "offload_directory": str(directory)} if names else {}
    return state_of(config("ppo", algorithm={"name": "ppo", "kl_coef": 0.1}, deployment=section), directory, Kept())


def watch(state: TrainState, directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[set[str]]]:
    """Keep which models are in files when completions are sampled, in each pass, and after each update."""
    away: dict[str, list[set[str]]] = {}

    def watching(moment: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            found = function(*given, **named) if moment == "update" else None
            away.setdefault(moment, []).append(
                {model.name for model in state.models if is_in_files(model.model, directory)}
            )
            return found if moment == "update" else function(*given, **named)

        return watched

    for name in ("collect", "policy_loss", "critic_loss", "score"):
        monkeypatch.setattr(engine, name, watching(name, getattr(engine, name)))
    for model in (state.policy, state.critic):
        monkeypatch.setattr(model, "optimizer_step", watching("update", model.optimizer_step))  # type: ignore[union-attr]
    return away


def test_models_are_in_files_while_completions_are_sampled_and_not_while_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, state = started(tmp_path, ()), started(tmp_path, MODELS)
    for step in range(2):
        make_step(whole, step)
    away = watch(state, tmp_path, monkeypatch)
    for step in range(2):
        make_step(state, step)
    assert away["collect"] == away["score"] == [set(MODELS)] * 2
    assert all("reference" in each for each in away["critic_loss"] + away["policy_loss"] + away["update"])
    assert not any("critic" in each for each in away["critic_loss"])
    assert not any("policy" in each for each in away["policy_loss"])
    assert away["update"][-1] == {"reference"}
    assert state.policy.optimizer_digest() == whole.policy.optimizer_digest()
    assert state.policy.weights().digests() == whole.policy.weights().digests()


def test_a_bit_that_changes_meanwhile_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = started(tmp_path, ("critic",))
    assert isinstance(state.critic, Trainer)
    parameter, collect = next(state.critic.model.parameters()), engine.collect

    def flip(state: TrainState, wanted: Sequence[SampleRequest]) -> list[Trajectory]:
        parameter.detach().view(-1)[0] += 1
        return collect(state, wanted)

    monkeypatch.setattr(engine, "collect", flip)
    with pytest.raises(PlacementError, match="changed while it was offloaded: weights"):
        make_step(state, 0)


def test_a_directory_without_room_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, at: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    state = started(tmp_path, ("policy",))
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(PlacementError, match=r"the policy cannot leave its device for .*: No space left"):
        make_step(state, 0)
