"""Receipts for other trainers: digests under a checkpoint's names, out of vLLM's fused parameters."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import tensor_digests, weights_digest
from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.weights.arrivals import Canary, VllmWorkers, receipt_for
from rlcore.weights.receipts import Check
from rlcore.weights.vllm_extension import WeightAnswers, hub_views


class Linear(nn.Module):
    """A linear layer as vLLM has them: its rows are parts."""

    def __init__(self, sizes: Sequence[int], width: int, **facts: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(sum(sizes), width), requires_grad=False)
        self.output_sizes = list(sizes)
        for name, value in facts.items():
            setattr(self, name, value)


class Model(nn.Module):
    """Two layers with fused projections, a padded vocabulary, and a head that may be tied."""

    packed_modules_mapping: Mapping[str, list[str]] = {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}

    def __init__(self, *, is_tied: bool = True, **facts: Any) -> None:
        super().__init__()
        self.embed_tokens, self.layers = Linear([64], 16, org_vocab_size=40), nn.ModuleList()
        for _ in range(2):
            layer = nn.Module()
            layer.qkv_proj = Linear([16, 8, 8], 16, head_size=8, num_heads=2, num_kv_heads=1, **facts)
            layer.gate_up_proj, layer.down_proj = Linear([24, 24], 16), Linear([16], 24)
            self.layers.append(layer)
        self.lm_head = Linear([64], 16, org_vocab_size=40)
        if is_tied:
            self.lm_head.weight = self.embed_tokens.weight


def trainer(seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"embed_tokens.weight": (40, 16)}
    for number in range(2):
        sizes = {"q_proj": 16, "k_proj": 8, "v_proj": 8, "gate_proj": 24, "up_proj": 24}
        shapes |= {f"layers.{number}.{name}.weight": (rows, 16) for name, rows in sizes.items()}
        shapes[f"layers.{number}.down_proj.weight"] = (16, 24)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def deliver(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as vLLM's loader does, by views that are not those of the check."""
    own = dict(model.named_parameters())
    own["embed_tokens.weight"][:40] = tensors["embed_tokens.weight"]
    for number in range(2):
        at = f"layers.{number}."
        for fused, parts in (("qkv", ("q", "k", "v")), ("gate_up", ("gate", "up")), ("down", ("down",))):
            own[f"{at}{fused}_proj.weight"].copy_(torch.cat([tensors[f"{at}{each}_proj.weight"] for each in parts]))


@dataclass
class Worker(WeightAnswers):
    """Stands for vLLM's worker."""

    model: nn.Module

    def __post_init__(self) -> None:
        self.model_runner = self

    def get_model(self) -> nn.Module:
        return self.model


def workers(*models: nn.Module) -> VllmWorkers:
    def call(method: str, args: Sequence[Any] = ()) -> list[Any]:
        return [getattr(Worker(model), method)(*args) for model in models]

    return VllmWorkers(call)


def test_fused_parameters_have_the_digests_of_their_parts() -> None:
    tensors, model = trainer(), Model()
    deliver(model, tensors)
    receipt = receipt_for(tensors.items(), workers(model, model), 3)
    assert receipt.parameters == tensor_digests(tensors)
    assert receipt.weights_digest == weights_digest(tensors)
    assert (receipt.policy_version, receipt.num_changed) == (3, None)
    views = hub_views(model)
    assert torch.equal(views["lm_head.weight"], tensors["embed_tokens.weight"]), "tied weights have both names"
    assert views["layers.0.k_proj.weight"]._base is not None, "a view"


def test_a_second_receipt_counts_what_has_changed() -> None:
    tensors, model = trainer(), Model()
    deliver(model, tensors)
    first = receipt_for(tensors.items(), workers(model), 1)
    tensors["layers.1.v_proj.weight"] += 1
    deliver(model, tensors)
    second = receipt_for(tensors.items(), workers(model), 2, previous=first, has_learned=True)
    assert second.num_changed == 1
    with pytest.raises(WeightSyncError, match="no bit of it has changed") as caught:
        receipt_for(tensors.items(), workers(model), 3, previous=second, has_learned=True)
    assert caught.value.check == Check.LIVENESS


def never_delivered(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """An adapter that the trainer has merged, and the sync has not."""


def exchanged(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Keys in the rows of values."""
    at = "layers.1."
    deliver(model, tensors | {f"{at}k_proj.weight": tensors[f"{at}v_proj.weight"]})


def rounded(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    deliver(model, {name: tensor.bfloat16().float() for name, tensor in tensors.items()})


def one_layer_missing(model: Any, tensors: dict[str, Tensor]) -> None:
    deliver(model, tensors)
    del model.layers[1]


@pytest.mark.parametrize(
    ("fault", "check", "parameter"),
    [
        (never_delivered, Check.LIVENESS, "layers.1.k_proj.weight"),
        (exchanged, Check.READ_BACK, "layers.1.k_proj.weight"),
        (rounded, Check.READ_BACK, "embed_tokens.weight"),
        (one_layer_missing, Check.COVERAGE, "layers.1.q_proj.weight"),
    ],
)
def test_a_fault_is_found_by_its_check(fault: Callable[..., None], check: Check, parameter: str) -> None:
    tensors, model = trainer(), Model()
    deliver(model, tensors)
    first = receipt_for(tensors.items(), workers(model), 1)
    tensors["layers.1.k_proj.weight"] = tensors["layers.1.k_proj.weight"] + 0.1
    fault(model, tensors)
    with pytest.raises(WeightSyncError) as caught:
        receipt_for(tensors.items(), workers(model), 2, previous=first)
    assert (caught.value.check, caught.value.parameter) == (check, parameter)
    assert caught.value.remedy


def test_a_replica_that_was_left_out_is_found() -> None:
    tensors, first, second = trainer(), Model(), Model()
    deliver(first, tensors)
    deliver(second, trainer(seed=2))
    with pytest.raises(WeightSyncError, match="differs between workers 0 and 1"):
        receipt_for(tensors.items(), workers(first, second), 1)


def test_log_probabilities_are_compared_where_both_sides_give_them() -> None:
    tensors, model = trainer(), Model()
    deliver(model, tensors)
    expected = torch.tensor([-1.0, -2.0])
    receipt = receipt_for(tensors.items(), workers(model), 1, canary=Canary(expected, expected + 1e-6))
    assert 0 < receipt.canary_distance < 1e-5
    with pytest.raises(WeightSyncError) as caught:
        receipt_for(tensors.items(), workers(model), 1, canary=Canary(expected, expected + 0.1))
    assert caught.value.check == Check.CANARY


class Fp8LinearMethod:
    """As vLLM names the method of a quantised layer."""


class UnquantizedLinearMethod:
    """As vLLM names that of a plain one."""


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"quant_method": Fp8LinearMethod()}, r"layers\.0\.qkv_proj: it is quantised \(Fp8LinearMethod\)"),
        ({"tp_size": 2}, r"layers\.0\.qkv_proj: it is a shard of 2"),
        ({"lora_a_stacked": ()}, r"layers\.0\.qkv_proj: it has LoRA adapters"),
        ({"num_kv_heads": 3}, r"layers\.0\.qkv_proj: it has 32 rows for parts of \[16, 24, 24\]"),
    ],
)
def test_weights_that_only_kernels_read_are_refused_with_the_reason(facts: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValueError, match=why) as caught:
        receipt_for(trainer().items(), workers(_with(facts)), 1)
    assert caught.value.remedy
    hub_views(_with({"quant_method": UnquantizedLinearMethod(), "tp_size": 1}))


def _with(facts: dict[str, Any]) -> Model:
    model = Model()
    for name, value in facts.items():
        setattr(model.layers[0].qkv_proj, name, value)
    return model


def test_packed_weights_are_refused() -> None:
    model: Any = Model()
    model.layers[0].down_proj.weight = nn.Parameter(torch.empty(0))
    with pytest.raises(InvalidValueError, match=r"layers\.0\.down_proj: it has an empty weight"):
        receipt_for(trainer().items(), workers(model), 1)
