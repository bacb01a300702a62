"""The engine's compiled kernels in a record of operations: each is one, and a difference inside of it is laid to it."""

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from harness.trace.ops import OpDifference, OpRecord, compare_ops
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.compiled import operations
from rlcore.numerics.compiled.library import library
from rlcore.numerics.level import computing
from tests.recording.op_records import record

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

CONFIG = DecoderConfig("qwen3", 12, 32, 1, 2, 1, 16, 64, max_length=32)
TOKENS = torch.arange(24).remainder(12).reshape(2, 12)
OF_A_PASS = {"rms_norm", "swiglu", "attend"}


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    with computing("compiled"):
        yield


@pytest.fixture
def decoder() -> Decoder:
    return Decoder(CONFIG).initialise(3)


def learn(decoder: Decoder) -> list[torch.Tensor]:
    """A pass, and its gradients."""
    decoder.zero_grad()
    decoder(TOKENS).square().sum().backward()
    return [parameter.grad.clone() for parameter in decoder.parameters() if parameter.grad is not None]


def recorded(decoder: Decoder) -> OpRecord:
    return record(lambda mode: learn(decoder))


def test_each_is_an_operation_and_no_bit_is_another_for_being_seen(decoder: Decoder) -> None:
    seen: list[torch.Tensor] = []
    found = record(lambda mode: seen.extend(learn(decoder)))
    of_kernels = {(each.phase, each.name) for each in found.operations if each.name.startswith("rlcore.")}
    forward = {("forward", f"rlcore.{name}.default") for name in OF_A_PASS}
    assert of_kernels >= forward | {("backward", f"rlcore.{name}_backward.default") for name in OF_A_PASS}
    assert all(torch.equal(one, other) for one, other in zip(learn(decoder), seen, strict=True))


def test_one_element_of_a_norm_of_keys_is_found_where_it_is_read(decoder: Decoder) -> None:
    before = recorded(decoder)
    with torch.no_grad():
        norm = decoder.get_parameter("layers.0.k_norm")
        norm[5] = torch.nextafter(norm[5], torch.tensor(2.0))
    found = compare_ops(before, recorded(decoder), 0, 0)
    assert found.first is not None
    assert found.first.a is not None
    assert (found.first.what, found.first.a.name) == (OpDifference.INPUT, "rlcore.attend.default")
    assert found.first.inputs == (True, True, False, True), "heads, the norm of queries, that of keys, rotations"
    assert found.made is None, "and nothing makes another value out of equal ones"


class OffByABit:
    """The kernels, of which `attend` flips the lowest bit of the first number that it gives."""

    def __init__(self) -> None:
        self.library = library()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def attend(self, *given: Any) -> int:
        problem: int = self.library.attend(*given)
        mixed, _, _ = given[-3:]
        ctypes.c_uint32.from_address(mixed).value ^= 1
        return problem


def test_a_kernel_that_makes_something_else_out_of_the_same_is_named(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, faulty = recorded(decoder), OffByABit()
    monkeypatch.setattr(operations, "library", lambda: faulty)
    first = compare_ops(before, recorded(decoder), 0, 0).first
    assert first is not None
    assert first.a is not None
    assert (first.what, first.a.name) == (OpDifference.OUTPUT, "rlcore.attend.default")
    assert first.outputs == (False, True), "what is mixed; what stays for its gradient is as it was"
