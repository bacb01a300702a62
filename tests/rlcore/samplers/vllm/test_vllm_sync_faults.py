"""Three syncs that went wrong in other engines, and a layer that computes something else: what a user of vLLM reads.

With receipts they are found at the sync. Without them the first step that samples with wrong weights finds them, and
where nothing checks, the metrics show them.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rlcore.errors import LevelError, RlcoreError, WeightSyncError
from rlcore.log import NullRecorder
from rlcore.weights.receipts import Check
from tests.guards.planted.entry import run
from tests.guards.planted.settings import payload
from tests.support.vllm_engines import Engines, need_vllm

need_vllm()
ENGINES = Engines()


@pytest.fixture(autouse=True)
def shared_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs borrow engines in turn."""
    with ENGINES.instead_of_starts(monkeypatch):
        yield


def trained(
    directory: Path,
    fault: str = "",
    *,
    has_receipts: bool = True,
    level: str = "invariant",
    **settings: Mapping[str, Any],
) -> list[dict[str, float]]:
    """Train with a fault and vLLM; return the metrics."""
    values = {f"{section}.{name}": value for section, given in settings.items() for name, value in given.items()}
    asked = {**payload("grpo", {"sampler.name": "vllm", **values}), "fault": {"has_receipts": has_receipts}}
    if fault:
        asked["fault"]["name"] = fault
    directory.mkdir(parents=True)
    run(asked, level=level, directory=directory, recorder=NullRecorder())
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text("utf-8").splitlines()]


def failed(directory: Path, fault: str = "", *, has_receipts: bool = True) -> RlcoreError:
    """Return what ends a run."""
    with pytest.raises(RlcoreError) as caught:
        trained(directory, fault, has_receipts=has_receipts)
    assert caught.value.remedy
    return caught.value


AT_THE_SYNC = {
    "later_sync_noop": (Check.LIVENESS, "embedding", "10 of 10 parameters differ"),
    "name_not_found": (Check.READ_BACK, "layers.0.mlp_norm", "1 of 10 parameters differ"),
    "fused_in_another_order": (Check.READ_BACK, "layers.0.qkv", "1 of 10 parameters differ"),
}
AT_THE_STEP = {
    "later_sync_noop": "embedding of the sampler is not the policy's (10 of 10 parameters are not)",
    "name_not_found": "layers.0.mlp_norm of the sampler is not the policy's (1 of 10 parameters are not)",
    "fused_in_another_order": "layers.0.qkv of the sampler is not the policy's (1 of 10 parameters are not)",
}


@pytest.mark.parametrize("fault", AT_THE_SYNC)
def test_a_receipt_names_the_check_the_parameter_and_the_remedy(fault: str, tmp_path: Path) -> None:
    error = failed(tmp_path / "run", fault)
    check, parameter, said = AT_THE_SYNC[fault]
    assert isinstance(error, WeightSyncError)
    assert (error.check, error.parameter) == (check, parameter)
    assert said in error.what


@pytest.mark.parametrize("fault", AT_THE_STEP)
def test_without_receipts_the_first_step_of_wrong_weights_names_the_parameter(fault: str, tmp_path: Path) -> None:
    error = failed(tmp_path / "run", fault, has_receipts=False)
    assert isinstance(error, LevelError)
    assert AT_THE_STEP[fault] in error.what
    assert error.what.startswith("step 1:" if fault == "later_sync_noop" else "step 0:")
    assert "receipt" in error.remedy


def test_where_nothing_checks_the_metrics_show_a_sync_without_effect(tmp_path: Path) -> None:
    """The mismatch grows from step 1 on, and held-out rewards stay as they are: the same weights, the same noise."""
    asked: dict[str, Any] = {"level": "off", "has_receipts": False, "output": {"evaluate_every": 1}}
    honest, faulty = (trained(tmp_path / f"run {name}", name, **asked) for name in ("", "later_sync_noop"))
    for metrics, is_faulty in ((honest, False), (faulty, True)):
        apart = [each["mismatch/max_nats"] for each in metrics if "mismatch/max_nats" in each]
        rewards = [each["evaluation/reward_mean"] for each in metrics if "evaluation/reward_mean" in each]
        assert apart[0] < 1e-4
        assert all((each > 0.1) is is_faulty for each in apart[1:])
        assert (len(set(rewards)) == 1) is is_faulty


def plant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the second layer of the next engine be larger by its last bits."""
    from rlcore.samplers.vllm.engine import Engine

    borrow = Engine.start

    def altered(*given: Any) -> Engine:
        engine = borrow(*given)
        layer = engine.decoder.layers[1]
        forward = layer.forward

        def a_little_more(x: Tensor, by: Any) -> Tensor:
            out: Tensor = forward(x, by) * (1 + 2**-20)
            return out

        monkeypatch.setattr(layer, "forward", a_little_more)
        return engine

    monkeypatch.setattr(Engine, "start", altered)


@pytest.mark.parametrize("has_receipts", [True, False])
def test_a_layer_that_computes_something_else_is_named(
    has_receipts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    three: Any = {"model": {"num_layers": 3}}
    with pytest.raises(
        RlcoreError, match=r"the first activations that differ are those of layers\.1, from position 0"
    ) as caught:
        trained(tmp_path / "run", has_receipts=has_receipts, **three)
    assert isinstance(caught.value, WeightSyncError if has_receipts else LevelError)


def test_a_cache_that_decoding_alone_reads_wrongly_is_told_from_a_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlcore.samplers.vllm.paged_attention import PagedBackend

    held = PagedBackend._held

    def stale(by: PagedBackend, cache: Tensor, k: Tensor, v: Tensor, group: Any) -> tuple[Tensor, Tensor]:
        keys, values = held(by, cache, k, v, group)
        is_decoding = group.slots is not None and group.tokens.shape[1] == 1 and k.shape[2] > 1
        return keys, values * 1.5 if is_decoding else values

    monkeypatch.setattr(PagedBackend, "_held", stale)
    error = failed(tmp_path / "run", has_receipts=False)
    assert "decoding differs from reading" in error.what
