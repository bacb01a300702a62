"""Engines of vLLM for tests: each takes seconds to start, so that tests use them in turn."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import torch

from harness.bits.tensor_digests import weights_digest
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.product import hold_mkl_mode
from rlcore.types import Tokenizer
from rlcore.weights.remote import RemoteTarget

if TYPE_CHECKING:
    from rlcore.samplers.vllm.engine import Engine, EngineSettings
    from rlcore.samplers.vllm.sampler import VllmSampler

CONCURRENCY = 16
"""The most that tests ask for."""
_at_rest: "dict[tuple[DecoderConfig, torch.dtype, EngineSettings], list[Engine]]" = {}


def need_vllm() -> None:
    """Skip the module that calls this while it is imported if vLLM is not installed.

    Engines are in MKL's mode of level invariant from their start on: it keeps the mode of its first work.
    """
    if find_spec("vllm") is None:
        pytest.skip(
            "vllm is not installed: tests/rlcore/peers/environments.py makes its environment, and runs these tests",
            allow_module_level=True,
        )
    hold_mkl_mode(os.environ)


class Lend(Protocol):
    """Makes samplers with fresh copies of a decoder."""

    def __call__(self, tokenizer: Tokenizer, concurrency: int = CONCURRENCY, **settings: int) -> "VllmSampler":
        """Return a sampler whose engine has these settings, but `preempt_every`, which is its own."""


@contextmanager
def lending(decoder: Decoder) -> Iterator[Lend]:
    """Give what makes samplers; their engines rest at the end."""
    from rlcore.samplers.vllm.sampler import VllmSampler

    lent: list[Engine] = []

    def lend(tokenizer: Tokenizer, concurrency: int = CONCURRENCY, **settings: int) -> "VllmSampler":
        preempt_every = settings.pop("preempt_every", 0)
        engine = take(decoder, **settings)
        lent.append(engine)
        return VllmSampler(engine, tokenizer, concurrency=concurrency, preempt_every=preempt_every)

    try:
        yield lend
    finally:
        for engine in lent:
            give_back(engine, decoder)


def take(decoder: Decoder, **settings: Any) -> "Engine":
    """Take an engine with a copy of the decoder, an earlier one if one rests."""
    from rlcore.samplers.vllm.engine import Engine, EngineSettings

    wanted = EngineSettings(max_length=decoder.config.max_length, concurrency=CONCURRENCY)
    return _taken(decoder, replace(wanted, **settings), Engine)


def give_back(engine: "Engine", decoder: Decoder) -> None:
    """Let an engine rest."""
    _at_rest[decoder.config, decoder.embedding.dtype, engine.settings].append(engine)


@contextmanager
def instead_of_starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let whole runs borrow engines in the place of starting one each; they return at the end."""
    from rlcore.samplers.vllm.engine import Engine

    lent: list[tuple[Engine, Decoder]] = []

    def borrow(decoder: Decoder, settings: "EngineSettings", report: object = None) -> Engine:
        lent.append((_taken(decoder, settings, Engine), decoder))
        return lent[-1][0]

    with monkeypatch.context() as borrowed:
        borrowed.setattr("rlcore.samplers.vllm.engine.Engine", borrow)
        yield
    for engine, decoder in lent:
        give_back(engine, decoder)


def _taken(decoder: Decoder, settings: "EngineSettings", start: "Callable[..., Engine]") -> "Engine":
    resting = _at_rest.setdefault((decoder.config, decoder.embedding.dtype, settings), [])
    if not resting:
        return start(decoder, settings)
    engine = resting.pop()
    give_weights(engine, decoder)
    engine.clear_pages()
    return engine


def give_weights(engine: "Engine", decoder: Decoder) -> None:
    """Let an engine have a copy of a decoder's weights, as one that has just been started."""
    parameters = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
    target = RemoteTarget(engine.ask)
    target.begin(0)
    target.write(parameters.items())
    target.commit(weights_digest(parameters))
    assert engine.reset_cache()
