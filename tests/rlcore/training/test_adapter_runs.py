"""Runs that train adapters: they alone move, travel and are written, to the same bits however a run is laid out."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlcore.checkpoint import load_newest
from rlcore.config import RunConfig, read_config
from rlcore.errors import CheckpointError, InvalidValueError, WeightSyncError
from rlcore.models import adapters, checkpoints
from rlcore.models.build import build_model
from rlcore.models.decoder import Decoder, is_adapter
from rlcore.samplers.local_target import LocalTarget
from rlcore.train import TrainState
from rlcore.trainers.gradients import trained_parameters
from rlcore.weights.receipts import Check
from rlcore.weights.target import NamedTensors
from tests.rlcore.training.recorded import Lost, config, first_difference, recorded, trained, two_stages
from tests.support.run_configs import with_section

LORA = {"rank": 4, "alpha": 8.0}
MODEL = {"lora": LORA}
FEW = {"num_steps": 3}


def adapted(name: str = "grpo", **sections: Any) -> RunConfig:
    return config(name, **{"model": MODEL, "training": FEW, "optimizer": {"learning_rate": 1e-2}, **sections})


def tensors_of(decoder: Decoder, *, of_adapters: bool) -> dict[str, Tensor]:
    return {name: each for name, each in decoder.state_dict().items() if is_adapter(name) is of_adapters}


def has_moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[bool]:
    return {not torch.equal(before[name], after[name]) for name in before}


def check_policy(state: TrainState, directory: Path, of: RunConfig) -> None:
    """The base is as it was built, every adapter has moved, and a checkpoint has these alone."""
    first, last = build_model(of)[1], state.decoder
    assert has_moved(tensors_of(first, of_adapters=False), tensors_of(last, of_adapters=False)) == {False}
    assert has_moved(tensors_of(first, of_adapters=True), tensors_of(last, of_adapters=True)) == {True}
    found = load_newest(directory / "checkpoints")
    assert found is not None
    assert all(is_adapter(name) for name in load_file(found.path / "policy_state" / "state.safetensors"))
    assert {path.name for path in (found.path / "policy").iterdir()} >= {adapters.CONFIG, adapters.WEIGHTS}
    exported = adapters.load(Decoder(first.config), found.path / "policy")
    assert has_moved(tensors_of(exported, of_adapters=True), tensors_of(last, of_adapters=True)) == {False}


def test_adapters_alone_move_and_are_written(tmp_path: Path) -> None:
    of = adapted()
    state = trained(of, tmp_path)
    check_policy(state, tmp_path, of)
    assert {name for name, each in state.policy.model.named_parameters() if each.grad is not None} == set()
    assert state.policy.masters.keys() == trained_parameters(state.policy.model).keys()
    assert state.receipt is not None
    assert state.receipt.parameters.keys() == dict(state.policy.model.named_parameters()).keys()


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {**MODEL, "dtype": "bfloat16"}},
        {"algorithm": {"kl_coef": 0.05}},
        {"model": {"lora": {**LORA, "target_modules": ["v_proj", "down_proj"]}}},
        {"training": {**FEW, "num_epochs": 2, "num_minibatches": 2}},
    ],
    ids=str,
)
def test_a_run_that_is_lost_is_resumed_to_the_same_bits(tmp_path: Path, sections: dict[str, Any]) -> None:
    of = adapted(**sections, output={"checkpoint_every": 1})
    whole = recorded(of, tmp_path / "whole")
    with pytest.raises(Lost):
        recorded(of, tmp_path / "lost", stop_after=1)
    resumed = with_section(of, "output", {"resume": str(tmp_path / "lost")})
    found = recorded(resumed, tmp_path / "resumed")
    assert found.curve.keys() == {1, 2}
    assert first_difference(found, whole) is None


def test_a_critic_has_adapters_of_its_own(tmp_path: Path) -> None:
    of = adapted("ppo", output={"checkpoint_every": 1, "keep_checkpoints": 3}, algorithm={"kl_coef": 0.05})
    state = trained(of, tmp_path)
    check_policy(state, tmp_path, of)
    assert state.critic is not None
    assert {name for name in state.critic.masters if not is_adapter(name)} == {"value_head.weight", "value_head.bias"}
    resumed = with_section(of, "output", {"resume": str(tmp_path), "resume_step": 1})
    assert first_difference(recorded(resumed, tmp_path / "resumed"), recorded(of, tmp_path / "whole")) is None


@pytest.mark.parametrize(
    "sections",
    [
        {"runtime": {"concurrency": 3, "preempt_every": 3, "arrival_seed": 5}},
        {"sampler": {"replicas": 2}},
        {"runtime": {"world_size": 3, "token_budget": 64, "training_threads": 2, "sampling_threads": 2}},
    ],
    ids=str,
)
def test_runtime_settings_move_no_bit(tmp_path: Path, sections: dict[str, Any]) -> None:
    assert first_difference(recorded(adapted(), tmp_path / "a"), recorded(adapted(**sections), tmp_path / "b")) is None


def test_models_that_rest_move_no_bit(tmp_path: Path) -> None:
    resting = {"offload": ["policy", "reference"], "offload_directory": str(tmp_path)}
    of = adapted(algorithm={"kl_coef": 0.05})
    found = recorded(with_section(of, "deployment", resting), tmp_path / "b")
    assert first_difference(recorded(of, tmp_path / "a"), found) is None


@pytest.mark.parametrize("level", ["off", "deterministic"])
def test_other_levels(tmp_path: Path, level: str) -> None:
    of = adapted()
    check_policy(trained(of, tmp_path, level=level), tmp_path, of)


def test_two_stages(tmp_path: Path) -> None:
    of = two_stages(model=MODEL, training={"num_steps": 2})
    check_policy(trained(of, tmp_path), tmp_path, of)


# -------------------------------------------------------------------------------------------- a base that has learned


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of full training, which answers a third of its prompts."""
    directory = tmp_path_factory.mktemp("base")
    trained(config(warm_start={"num_steps": 130, "batch_size": 32}, training={"num_steps": 1}), directory)
    found = load_newest(directory / "checkpoints")
    assert found is not None
    return found.path / "policy"


def on_base(base: Path, num_steps: int, **lora: Any) -> RunConfig:
    training = {"num_steps": num_steps, "prompts_per_step": 8, "group_size": 8, "microbatch_size": 16}
    of = config(training=training, optimizer={"learning_rate": 2e-3})
    payload = of.model_dump(exclude={"model", "warm_start"}, exclude_unset=True)
    return read_config({**payload, "model": {"path": str(base), "lora": {"rank": 8, "alpha": 16.0, **lora}}})


@pytest.mark.full
def test_adapters_learn(tmp_path: Path, base: Path) -> None:
    state = trained(on_base(base, 120), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    rewards = [line["reward_mean"] for line in lines if "reward_mean" in line]
    assert sum(rewards[-40:]) / 40 > sum(rewards[:20]) / 20 + 0.02, rewards
    before, after = checkpoints.load(base).state_dict(), tensors_of(state.decoder, of_adapters=False)
    assert has_moved(before, after) == {False}


def test_a_run_begins_from_adapters(tmp_path: Path, base: Path) -> None:
    state = trained(on_base(base, 2), tmp_path / "first")
    path = str(tmp_path / "first" / "checkpoints" / "step-000002" / "policy")
    decoder = build_model(on_base(base, 2, path=path))[1]
    assert has_moved(state.decoder.state_dict(), decoder.state_dict()) == {False}
    with pytest.raises(InvalidValueError, match=r"adapter_config.json has .*rank=8.*\n.*rank=2"):
        build_model(on_base(base, 2, path=path, rank=2))
    with pytest.raises(InvalidValueError, match=r"model\.lora\.path"):
        trained(on_base(base, 2, path=str(tmp_path / "absent")), tmp_path / "second")


# --------------------------------------------------------------------------------------------------- what is found


class KeepsAdapters(LocalTarget):
    """Ignores every write of an adapter after the first sync, as an engine that has them cached."""

    def write(self, weights: NamedTensors) -> None:
        is_first = self.policy_version == 0
        super().write((name, tensor) for name, tensor in weights if is_first or not is_adapter(name))


def test_a_sampler_that_keeps_old_adapters_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore.samplers.torch_sampler.LocalTarget", KeepsAdapters)
    with pytest.raises(WeightSyncError, match=r"layers\.0\.lora\.q_proj\.a has changed in the policy") as caught:
        recorded(adapted(), tmp_path)
    assert caught.value.check == Check.LIVENESS


def test_only_adapters_travel_and_another_base_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: set[str] = set()

    class Watched(LocalTarget):
        def write(self, weights: NamedTensors) -> None:
            found = dict(weights)
            sent.update(found)
            super().write(found.items())

    monkeypatch.setattr("rlcore.samplers.torch_sampler.LocalTarget", Watched)
    recorded(adapted(), tmp_path / "a")
    assert sent
    assert all(is_adapter(name) for name in sent)

    class Moved(LocalTarget):
        def __init__(self, decoder: Decoder) -> None:
            with torch.no_grad():
                decoder.norm.mul_(1.5)
            super().__init__(decoder)

    monkeypatch.setattr("rlcore.samplers.torch_sampler.LocalTarget", Moved)
    with pytest.raises(WeightSyncError, match="norm of the sampler has other bits"):
        recorded(adapted(), tmp_path / "b")


def test_a_checkpoint_is_of_its_adapters(tmp_path: Path) -> None:
    recorded(adapted(), tmp_path)
    for other in (config(training=FEW), adapted(model={"lora": {**LORA, "rank": 2}})):
        of = with_section(with_section(other, "output", {"resume": str(tmp_path)}), "training", {"num_steps": 4})
        with pytest.raises(CheckpointError, match=r"is of another run: .*model\.lora"):
            recorded(of, tmp_path / "other")


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"model": {"lora": {"target_modules": ["lm_head"]}}}, "model.lora.target_modules"),
        ({"model": {"lora": {"target_modules": []}}}, "model.lora.target_modules"),
        ({"model": {"lora": {"rank": 0}}}, r"model\.lora\.rank is 0"),
        ({"model": {"lora": {"dropout": 0.1}}}, r"unknown key model\.lora\.dropout"),
        (
            {"model": MODEL, "sampler": {"name": "vllm", "model": "stock"}},
            "sampler.model is stock, and model.lora is set",
        ),
    ],
)
def test_settings_that_cannot_be_are_refused(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValueError, match=told):
        adapted(**sections)


def test_a_run_without_adapters_has_the_identity_it_had() -> None:
    identity = config().identity()
    assert identity["model"].pop("lora") is None
    assert "lora" not in json.dumps(identity)
