"""The level of a run, entered around all of it."""

import json
import os
from functools import partial

import pytest
import torch

from rlcore.determinism import at_level, check_level_of_device, kernels_of
from rlcore.distributed.process_report import effective_values
from rlcore.entrypoint import check_device
from rlcore.errors import LevelError
from rlcore.log import Clock
from rlcore.models.config import DecoderConfig
from rlcore.numerics.level import Strategy
from rlcore.numerics.probe import InvarianceReport, certify, machine, main

CONFIG = DecoderConfig("qwen3", 12, 8, 1, 2, 1, 4, 12, max_length=16)


def test_numbers_of_threads_that_no_certificate_holds_for_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr("rlcore.determinism._check_threads", lambda invariance_report, count: looked_at.append(count))
    with at_level("invariant", CONFIG, length=64, threads=(1, 5, 2, 3)):
        pass
    with at_level("off", CONFIG, length=64, threads=(7,)):
        pass
    assert looked_at == [3, 5]


class Cuda:
    """Counts what is asked of torch.cuda, by name; a model on a CPU has nothing to ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        for name in ("is_available", "get_device_name", "current_device", "synchronize", "_lazy_init"):
            monkeypatch.setattr(torch.cuda, name, partial(self._answer, name))

    def _answer(self, name: str, *_: object) -> bool:
        self.asked.append(name)
        return False


@pytest.mark.parametrize(
    ("device", "reason"),
    [("cuda", "kernels are Triton's, which is not installed"), ("mps", "no batch-invariant kernels")],
)
def test_level_invariant_is_refused_on_a_device_without_kernels_and_no_driver_is_asked(
    device: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = Cuda(monkeypatch)
    monkeypatch.setattr("rlcore.numerics.level.find_spec", lambda name: None)
    for enter in (
        lambda: at_level("invariant", CONFIG, device=device, length=64).__enter__(),
        lambda: check_device(device, "invariant"),
    ):
        with pytest.raises(LevelError, match=f"level invariant on {device}: .*{reason}") as caught:
            enter()  # type: ignore[no-untyped-call]
        assert "--level deterministic" in caught.value.remedy
    assert cuda.asked == []


def test_kernels_of_a_gpu_are_in_the_fingerprint_of_a_run_at_level_invariant_alone() -> None:
    pytest.importorskip("triton")
    assert kernels_of("invariant", "cuda:0")["kernels"].startswith("rlcore.numerics.gpu 1, triton ")
    assert kernels_of("invariant", "cpu") == kernels_of("deterministic", "cuda") == {}


@pytest.mark.parametrize(("value", "is_refused"), [("", True), (":8:8", True), (":16:8", False), (":4096:8", False)])
def test_the_workspace_of_cublas_is_asked_for_before_the_first_product(
    value: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch would refuse at the first product; who calls the engine without rlharness learns it, and the remedy."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    for level, device in (("off", "cuda"), ("deterministic", "cpu")):
        check_level_of_device(level, device)
    if not is_refused:
        check_level_of_device("deterministic", "cuda")
        return
    with pytest.raises(LevelError, match=f"CUBLAS_WORKSPACE_CONFIG is {value or 'not set'}, .* on cuda") as caught:
        check_level_of_device("deterministic", "cuda")
    assert ":4096:8 before Python starts" in caught.value.remedy


def test_the_probe_looks_with_the_algorithms_that_the_run_has(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def certified(*arguments: object, **more: object) -> InvarianceReport:
        found.append(torch.are_deterministic_algorithms_enabled())
        return certify(length=64)

    monkeypatch.setattr("rlcore.determinism._certified", certified)
    with at_level("invariant", CONFIG, length=64):
        assert found == [True]
    assert not torch.are_deterministic_algorithms_enabled()


def certified_on_a_cpu(dtype: torch.dtype, *, device: str) -> InvarianceReport:
    return InvarianceReport(Strategy(), dtype, (), (), 64)


def test_a_process_on_a_cpu_asks_for_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To ask breaks a later fork, and makes CUDA read CUDA_VISIBLE_DEVICES."""
    cuda = Cuda(monkeypatch)
    monkeypatch.setattr("rlcore.numerics.probe.certify", certified_on_a_cpu)
    main("cpu")
    assert [json.loads(line)["device"] for line in capsys.readouterr().out.splitlines()] == ["cpu", "cpu"]
    machine()
    effective_values(os.environ)
    with Clock("cpu")("rollout"):
        pass
    with at_level("invariant", CONFIG, length=64):
        pass
    assert cuda.asked == []
