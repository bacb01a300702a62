"""Compiled kernels at a level: where they are refused, what a certificate says, and that the probe looks at them."""

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from rlcore.determinism import at_level
from rlcore.errors import InvalidValueError, LevelError
from rlcore.models.config import DecoderConfig
from rlcore.numerics.compiled import layers, operations
from rlcore.numerics.exact import Exact
from rlcore.numerics.invariance_report import InvarianceReport
from rlcore.numerics.level import computing, is_compiled
from rlcore.numerics.probe import certify, check_threads

pytestmark = pytest.mark.needs_compiler

CONFIG = DecoderConfig("qwen3", 12, 32, 1, 2, 1, 16, 44, max_length=64)


@pytest.fixture
def compiled() -> Iterator[None]:
    with computing("compiled"):
        yield


def looked_at() -> InvarianceReport:
    return certify(shapes=[(16, 32)], heads=[(2, 1, 16)], layers=[(32, 20)], length=64, strategies=[Exact()])


@pytest.mark.parametrize(
    ("dtype", "device", "told"),
    [
        (torch.bfloat16, "cpu", "model.dtype bfloat16 and model.device cpu"),
        (torch.float32, "cuda", "model.dtype float32 and model.device cuda"),
        (torch.float32, "cuda:1", "model.dtype float32 and model.device cuda:1"),
    ],
)
@pytest.mark.parametrize("level", ["off", "deterministic", "invariant"])
def test_other_types_and_devices_are_refused(
    dtype: torch.dtype, device: str, told: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    held = at_level(level, CONFIG, dtype=dtype, device=device, length=64, kernels="compiled")
    if level == "invariant" and device != "cpu":
        with pytest.raises(LevelError, match=f"level invariant on {device}"), held:
            pytest.fail("entered")
    else:
        with pytest.raises(InvalidValueError) as caught, held:
            pytest.fail("entered")
        assert caught.value.what == f"model.kernels compiled with {told}"
        assert (caught.value.legal, caught.value.remedy) == ("float32 on cpu", "model.kernels torch")
    assert not is_compiled()


def test_the_certificate_says_whose_kernels_it_is_for() -> None:
    with at_level("invariant", CONFIG, length=64, kernels="compiled") as invariance_report:
        assert is_compiled() and invariance_report is not None
        assert invariance_report.kernels == "compiled"
        assert invariance_report.lines()[0].startswith("compiled kernels for float32 on cpu")
    assert not is_compiled()
    plain = looked_at()
    assert plain.kernels == "torch" and "compiled" not in plain.lines()[0]


def test_a_level_without_certificate_computes_with_them_too() -> None:
    with at_level("off", CONFIG, length=64, kernels="compiled"):
        assert is_compiled()
    with pytest.raises(ZeroDivisionError), at_level("off", CONFIG, length=64, kernels="compiled"):
        raise ZeroDivisionError
    assert not is_compiled()


# ---------------------------------------------------------------------------------------------- the probe looks at them


def test_kernels_as_they_are_hold(compiled: None) -> None:
    found = looked_at()
    assert [m.operation for m in found.measurements if m.strategy == "exact" and m.held] == [
        "linear",
        "attention",
        "rows",
        "layers",
    ]
    check_threads(found, 3, shapes=[(16, 32)], heads=[(2, 1, 16)], layers=[(32, 20)])


def by_the_size(name: str, of: ModuleType = operations) -> Callable[..., Any]:
    """The operation, with a little of the size of its batch in what it gives first."""
    compute = getattr(of, name)

    def broken(x: torch.Tensor, *given: Any, **named: Any) -> Any:
        made = compute(x, *given, **named)
        (made if isinstance(made, torch.Tensor) else made[0]).mul_(1 + x.shape[:2].numel() / 1000)
        return made

    return broken


@pytest.mark.parametrize(
    ("name", "operation", "first"),
    [
        ("attend", "attention", "position 0, heads 2/1 of 16, threads 1"),
        ("attend_cached", "attention", "position 0, heads 2/1 of 16, threads 1"),
        ("rms_norm", "rows", "1 rows of 16, threads 1"),
        ("add_rms_norm", "rows", "1 rows of 16, threads 1"),
        ("rms_norm_backward", "rows", "1 rows of 16, threads 1"),
        ("swiglu", "rows", "1 rows of 16, threads 1"),
        ("swiglu_backward", "rows", "1 rows of 16, threads 1"),
        ("linear", "linear", "1 rows of 16 to 32, threads 1"),
        ("linear_backward", "linear", "1 rows of 16 to 32, threads 1"),
    ],
)
def test_kernels_that_depend_on_the_batch_are_refused(
    compiled: None, name: str, operation: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, name, by_the_size(name))
    with pytest.raises(LevelError) as caught:
        looked_at()
    assert f"{operation} exact: " in caught.value.what and f"differ, first {first}" in caught.value.what


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("layer", "a sample of layer 32 wide, heads 2/1 of 16, threads 1"),
        ("layer_backward", "a sample of layer 32 wide, heads 2/1 of 16, threads 1"),
        ("layer_cached", "positions 0 to 1, layer 32 wide, heads 2/1 of 16, threads 1"),
    ],
)
def test_whole_layers_that_depend_on_the_batch_are_refused(
    compiled: None, name: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, name, by_the_size(name, layers))
    with pytest.raises(LevelError) as caught:
        looked_at()
    assert "layers exact: " in caught.value.what and f"differ, first {first}" in caught.value.what


def test_gradients_that_are_wrong_in_every_batch_alike_are_refused(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = layers.layer_backward

    def broken(*given: Any, **named: Any) -> Any:
        d_x, d_attention_norm, d_qkv, *others = compute(*given, **named)
        return d_x, d_attention_norm, d_qkv * 1.01, *others

    monkeypatch.setattr(layers, "layer_backward", broken)
    with pytest.raises(LevelError, match=r"the gradient of qkv of a compiled layer, 32 wide, is 0\.01 of its norm"):
        looked_at()


def test_gradients_that_are_not_the_same_twice_are_refused(compiled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, calls = operations.attend_backward, iter(range(1000))

    def broken(*given: Any, **named: Any) -> Any:
        d_heads, *others = compute(*given, **named)
        return d_heads + next(calls), *others

    monkeypatch.setattr(operations, "attend_backward", broken)
    with pytest.raises(LevelError, match=r"attention exact: .* differ, first gradients, heads 2/1 of 16"):
        looked_at()


def test_a_cache_that_is_read_where_nothing_was_written_is_refused(
    compiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = operations.attend_cached

    def broken(*given: Any, values: torch.Tensor, **named: Any) -> torch.Tensor:
        return compute(*given, values=values, **named) + 0 * values[0, 0, -1, 0]

    monkeypatch.setattr(operations, "attend_cached", broken)
    with pytest.raises(LevelError, match=r"attention exact: .* differ"):
        looked_at()
