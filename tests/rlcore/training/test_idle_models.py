"""Models that leave their device: in files while completions are sampled, back before they are used, bits compared."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from rlcore.errors import PlacementError
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.train import TrainState, make_step
from rlcore.trainers.trainer import Trainer
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


def whereabouts(state: TrainState, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, set[str]]]:
    """Make two steps; return which models were in files after each call of a model, and of the sampler."""
    found: list[tuple[str, set[str]]] = []

    with monkeypatch.context() as patch:

        def watch(kind: type, method: str) -> None:
            real = getattr(kind, method)

            def watched(self: Any, *given: Any, **named: Any) -> Any:
                result = real(self, *given, **named)
                away = {model.name for model in state.models if is_in_files(model.model, directory)}
                found.append((getattr(self, "name", "sampler") + f" {method}", away))
                return result

            patch.setattr(kind, method, watched)

        watch(TorchSampler, "sample")
        for method in ("forward_backward", "optimizer_step", "read"):
            watch(Trainer, method)
        for step in range(2):
            make_step(state, step)
    return found


def test_models_are_in_files_while_completions_are_sampled_and_not_while_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, state = started(tmp_path, ()), started(tmp_path, MODELS)
    assert not any(away for _, away in whereabouts(whole, tmp_path, monkeypatch))
    seen = whereabouts(state, tmp_path, monkeypatch)
    assert [away for what, away in seen if what == "sampler sample"] == [set(MODELS)] * 2
    assert not any(what.split()[0] in away for what, away in seen)
    assert all("reference" in away for what, away in seen if what in ("policy forward_backward", "policy read"))
    assert seen[-1][1] == {"reference"}
    assert state.policy.optimizer_digest() == whole.policy.optimizer_digest()
    assert state.policy.weights().digests() == whole.policy.weights().digests()


def test_a_bit_that_changes_meanwhile_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = started(tmp_path, ("critic",))
    assert state.critic is not None
    parameter, sample = next(state.critic.model.parameters()), TorchSampler.sample

    def flip(*given: Any) -> Any:
        parameter.detach().view(-1)[0] += 1
        return sample(*given)

    monkeypatch.setattr(TorchSampler, "sample", flip)
    with pytest.raises(PlacementError, match=r"changed while it was offloaded: decoder.embedding \("):
        make_step(state, 0)


def test_a_directory_without_room_is_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, at: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    state = started(tmp_path, ("policy",))
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(PlacementError, match=r"the policy cannot leave its device for .*: No space left"):
        make_step(state, 0)
