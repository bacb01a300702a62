"""Products are right with either library, take rows one by one from two on, and leave to torch what is not oneDNN's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from rlcore.numerics import product as module
from rlcore.numerics.probe import num_threads, with_gradients
from rlcore.numerics.product import product
from tests.rlcore.numerics.rows_alone import ROWS_ALONE, needs_strict_mkl

needs_onednn = pytest.mark.skipif(not module.HAS_ONEDNN, reason="this torch has no oneDNN: products are torch's own")


@contextmanager
def by(library: str) -> Iterator[None]:
    """Products of this library, whatever the processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LIBRARY", library)
        yield


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(1, 3, 5), (21, 30, 11), (40, 64, 192), (0, 3, 5), (0, 0, 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("library", [pytest.param("oneDNN", marks=needs_onednn), "torch"])
def test_values_and_gradients_are_torchs(shape: tuple[int, int, int], dtype: torch.dtype, library: str) -> None:
    rows, inputs, outputs = shape
    given_ = [drawn(rows, outputs, seed=2), drawn(rows, inputs), drawn(outputs, inputs, seed=1)]
    with by(library):
        ours, torchs = (with_gradients(of, *(x.to(dtype) for x in given_)) for of in (product, F.linear))
    close = 4e-2 if dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(ours, torchs, atol=close, rtol=close)


@pytest.mark.parametrize("library", [pytest.param("oneDNN", marks=needs_onednn), "torch"])
def test_operands_are_not_rounded_down(library: str) -> None:
    x, weight = torch.full((16, 64), 1 + 2**-12), torch.full((32, 64), 1 + 2**-12)
    with by(library):
        assert torch.equal(product(x, weight), torch.full((16, 32), 64 * (1 + 2**-12) ** 2))


@needs_onednn
@pytest.mark.parametrize("asked", [0, 1], ids=["rows", "weight"])
def test_only_the_gradient_that_is_asked_for_is_computed(asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    operands = [drawn(4, 3), drawn(5, 3, seed=1)]
    operands[asked].requires_grad_()
    multiply = module._by_onednn
    shapes: list[tuple[int, ...]] = []

    def told(x: Tensor, weight: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return multiply(x, weight)

    monkeypatch.setattr(module, "_by_onednn", told)
    with by("oneDNN"):
        (grad,) = torch.autograd.grad(product(*operands).sum(), operands[asked])
    assert grad.shape == operands[asked].shape
    assert shapes == [(4, 3), (4, 5) if asked == 0 else (5, 4)]


@needs_onednn
@settings(max_examples=25)
@given(
    st.sampled_from([(64, 64), (100, 37), (64, 512), (384, 30)]),
    st.lists(st.integers(0, 299), min_size=2, max_size=300),
    st.sampled_from([1, 2, 3]),
)
def test_two_rows_and_more_have_the_bits_of_any_batch(shape: tuple[int, int], rows: list[int], count: int) -> None:
    inputs, outputs = shape
    x, weight, grad = drawn(300, inputs), drawn(outputs, inputs, seed=1), drawn(300, outputs, seed=2)
    with by("oneDNN"), num_threads(1):
        y, dx, dw = with_gradients(product, grad, x, weight)
    with by("oneDNN"), num_threads(count):
        part, dpart, _ = with_gradients(product, grad[rows], x[rows], weight)
        again = with_gradients(product, grad, x, weight)[2]
    assert torch.equal(part, y[rows])
    assert torch.equal(dpart, dx[rows])
    assert torch.equal(again, dw)


@pytest.mark.parametrize(
    ("processor", "has_mkl", "has_onednn", "library"),
    [
        ("Intel Xeon", True, True, "torch"),
        ("Intel Core Ultra 7 155H", True, True, "torch"),
        ("AMD EPYC 9J45", True, True, "oneDNN"),
        ("", True, True, "oneDNN"),
        ("Intel Xeon", False, True, "oneDNN"),
        ("AMD EPYC 9J45", True, False, "torch"),
    ],
)
def test_mkl_multiplies_on_its_makers_processors(processor: str, has_mkl: bool, has_onednn: bool, library: str) -> None:
    assert module.library(processor, has_mkl=has_mkl, has_onednn=has_onednn) == library


LEVEL = """
import os, sys, torch
from rlcore.determinism import at_level
from rlcore.models.config import DecoderConfig
if "late" in sys.argv:
    torch.randn(30, 30) @ torch.randn(30, 30)
config = DecoderConfig("llama", 11, 16, num_layers=1, num_heads=2, num_kv_heads=1, head_width=8, ffn_width=24)
with at_level("invariant", config, length=8):
    torch.manual_seed(0)
    x = torch.randn(1, 64, 64)
    print((x @ x).double().abs().sum().item(), os.environ["MKL_CBWR"])
"""


def entered(mode: str | None, *given: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program that enters level invariant as a library's user, with this MKL_CBWR from its start on."""
    env = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"} | variables
    env |= {} if mode is None else {"MKL_CBWR": mode}
    return subprocess.run([sys.executable, "-c", LEVEL, *given], env=env, capture_output=True, text=True, check=False)


def test_a_variable_that_was_not_set_is_set_in_time() -> None:
    unset, chosen = entered(None), entered(module.mkl_mode())
    assert unset.returncode == 0, unset.stderr
    assert unset.stdout == chosen.stdout
    assert unset.stdout.split()[1] == module.mkl_mode()


@pytest.mark.skipif(not module.HAS_MKL, reason="this torch has no MKL")
def test_mkl_that_has_computed_before_is_refused() -> None:
    late = entered(None, "late")
    assert f"legal:  MKL_CBWR={module.mkl_mode()} before that" in late.stderr
    assert f"remedy: export MKL_CBWR={module.mkl_mode()} before Python starts" in late.stderr
    assert entered(module.mkl_mode(), "late").returncode == 0


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("MKL_CBWR", "COMPATIBLE", "MKL_CBWR=AUTO or AUTO,STRICT"),
        ("ATEN_CPU_CAPABILITY", "default", "ATEN_CPU_CAPABILITY not set"),
    ],
)
def test_a_variable_with_other_bits_is_refused(name: str, value: str, legal: str) -> None:
    refused = entered(None, **{name: value})
    assert f"LevelError: the level 'invariant' conflicts with variables that are set: {name}={value}" in refused.stderr
    assert f"legal:  {legal}\n  remedy: unset {name}" in refused.stderr


def rows_alone(chosen: str) -> str:
    """Whether a row has the bits it has alone, and a product those of one thread, where MKL_CBWR is this."""
    env = {**os.environ, "MKL_CBWR": chosen, "MKL_DYNAMIC": "FALSE"}
    code = ROWS_ALONE
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@needs_strict_mkl
def test_strict_products_take_rows_one_by_one_whatever_the_threads() -> None:
    assert rows_alone("AUTO,STRICT") == "True True"


@needs_strict_mkl
def test_products_that_are_not_strict_do_not() -> None:
    assert rows_alone("AVX2") == "False False"
