"""Engines of vLLM for tests: each takes seconds to start, so that tests use them in turn."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import pytest
import torch

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.types import Tokenizer

if TYPE_CHECKING:
    from rlcore.samplers.vllm.engine import Engine, EngineSettings
    from rlcore.samplers.vllm.sampler import VllmSampler

CONCURRENCY = 16
"""The most that tests ask for."""


def need_vllm() -> None:
    """Skip the module that calls this while it is imported if vLLM is not installed."""
    if find_spec("vllm") is None:
        pytest.skip(
            "vllm is not installed: tests/rlcore/peers/environments.py makes its environment, and runs these tests",
            allow_module_level=True,
        )


class Lend(Protocol):
    """Makes samplers with fresh copies of a decoder."""

    def __call__(
        self, tokenizer: Tokenizer, concurrency: int = CONCURRENCY, *, preempt_every: int = 0, **settings: int
    ) -> "VllmSampler":
        """Return a sampler whose engine has these settings."""


@dataclass
class Engines:
    """Engines by their decoder's configuration and type, and their settings, at rest or lent."""

    at_rest: dict[tuple[DecoderConfig, torch.dtype, "EngineSettings"], list["Engine"]] = field(default_factory=dict)

    @contextmanager
    def lending(self, decoder: Decoder) -> Iterator[Lend]:
        """Give what makes samplers; their engines return at the end."""
        from rlcore.samplers.vllm.sampler import VllmSampler

        lent: list[Engine] = []

        def lend(
            tokenizer: Tokenizer, concurrency: int = CONCURRENCY, *, preempt_every: int = 0, **settings: int
        ) -> "VllmSampler":
            engine = self.take(decoder, **settings)
            lent.append(engine)
            return VllmSampler(engine, tokenizer, concurrency=concurrency, preempt_every=preempt_every)

        try:
            yield lend
        finally:
            for engine in lent:
                self.give_back(engine)

    def take(self, decoder: Decoder, **settings: int) -> "Engine":
        """Take an engine with a copy of the decoder, an earlier one if one rests."""
        from rlcore.samplers.vllm.engine import Engine, EngineSettings

        wanted = EngineSettings(max_length=decoder.config.max_length, concurrency=CONCURRENCY)
        wanted = replace(wanted, **settings)
        resting = self.at_rest.setdefault((decoder.config, decoder.embedding.dtype, wanted), [])
        if not resting:
            return Engine.start(decoder, wanted)
        engine = resting.pop()
        with torch.no_grad():
            engine.decoder.load_state_dict(decoder.state_dict())
        engine.reset_cache()
        return engine

    @contextmanager
    def instead_of_starts(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Let whole runs borrow engines in the place of starting one each; they return at the end."""
        from rlcore.samplers.vllm.engine import Engine

        lent: list[Engine] = []
        start = Engine.start

        def borrow(decoder: Decoder, settings: "EngineSettings", report: object = None) -> Engine:
            resting = self.at_rest.setdefault((decoder.config, decoder.embedding.dtype, settings), [])
            engine = resting.pop() if resting else start(decoder, settings)
            with torch.no_grad():
                engine.decoder.load_state_dict(decoder.state_dict())
            engine.clear_pages()
            lent.append(engine)
            return engine

        with monkeypatch.context() as borrowed:
            borrowed.setattr(Engine, "start", borrow)
            yield
        for engine in lent:
            self.give_back(engine)

    def give_back(self, engine: "Engine") -> None:
        """Let an engine rest."""
        decoder = engine.decoder
        self.at_rest[decoder.config, decoder.embedding.dtype, engine.settings].append(engine)
