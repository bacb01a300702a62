"""Models that leave their device: in files while completions are sampled, back before they are used, bits compared."""

from pathlib import Path

import pytest
from torch import nn

from rlcore.controllers.synchronous import make_step
from rlcore.errors import PlacementError
from rlcore.observability.events import Event, PassBegins, ReferenceUsed, RequestsBuilt, RolloutBatched, Updated
from rlcore.observability.observers import Observer
from rlcore.train_state import TrainState
from rlcore.trainers.frozen import FrozenModel
from rlcore.trainers.local import LocalTrainer
from tests.rlcore.training.recorded import config
from tests.rlcore.training.test_steps import Kept, state_of
from tests.support.mapped_memory import mapped_files

MODELS = ("policy", "critic", "reference")


def is_in_files(model: nn.Module, directory: Path) -> bool:
    """Whether the largest parameter has its memory in a file of the directory."""
    largest = max(model.parameters(), key=lambda parameter: parameter.nbytes)
    return any(name.startswith(str(directory)) for name in mapped_files(largest))


class Whereabouts(Observer):
    """Keeps which models are in files at some events of a step."""

    def __init__(self, models: dict[str, nn.Module], directory: Path) -> None:
        self._models, self._directory = models, directory
        self.away: dict[str, list[set[str]]] = {}

    def observe(self, event: Event) -> None:
        if isinstance(event, RequestsBuilt | RolloutBatched | PassBegins | ReferenceUsed | Updated):
            away = {name for name, model in self._models.items() if is_in_files(model, self._directory)}
            self.away.setdefault(type(event).__name__, []).append(away)


def started(directory: Path, names: tuple[str, ...]) -> tuple[TrainState, Whereabouts]:
    section = {"offload": names, "offload_directory": str(directory)} if names else {}
    state = state_of(config("ppo", algorithm={"name": "ppo", "kl_coef": 0.1}, deployment=section), directory, Kept())
    assert isinstance(state.policy, LocalTrainer)
    assert isinstance(state.critic, LocalTrainer)
    assert isinstance(state.reference, FrozenModel)
    models = {"policy": state.policy.model, "critic": state.critic.model, "reference": state.reference.model}
    seen = Whereabouts(models, directory)
    state.observers.each = (*state.observers.each, seen)
    return state, seen


def test_models_are_in_files_while_completions_are_sampled_and_not_while_they_are_used(tmp_path: Path) -> None:
    (whole, unseen), (state, seen) = started(tmp_path, ()), started(tmp_path, MODELS)
    for step in range(2):
        make_step(whole, step)
        make_step(state, step)
    assert set(map(frozenset, (each for found in unseen.away.values() for each in found))) == {frozenset()}
    assert seen.away["RequestsBuilt"] == [set(MODELS)] * 2
    assert seen.away["RolloutBatched"] == [set(MODELS)] * 2
    assert all("reference" in each for each in seen.away["PassBegins"] + seen.away["Updated"])
    assert not any({"policy", "critic"} <= each for each in seen.away["PassBegins"])
    assert seen.away["Updated"][-1] == {"reference"}
    assert state.policy.optimizer_digest() == whole.policy.optimizer_digest()
    assert state.policy.weights().digests() == whole.policy.weights().digests()


def test_a_bit_that_changes_meanwhile_ends_the_run(tmp_path: Path) -> None:
    state, _ = started(tmp_path, ("critic",))
    assert isinstance(state.critic, LocalTrainer)
    parameter = next(state.critic.model.parameters())

    class Flip(Observer):
        def observe(self, event: Event) -> None:
            if isinstance(event, RequestsBuilt):
                parameter.detach().view(-1)[0] += 1

    state.observers.each = (*state.observers.each, Flip())
    with pytest.raises(PlacementError, match="changed while it was offloaded: weights"):
        make_step(state, 0)


def test_a_directory_without_room_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, at: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    state, _ = started(tmp_path, ("policy",))
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(PlacementError, match=r"the policy cannot leave its device for .*: No space left"):
        make_step(state, 0)
