"""Engines of vLLM for tests: each takes seconds to start, so that tests use them in turn."""

import atexit
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
import torch

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.types import Tokenizer

if TYPE_CHECKING:
    from rlcore.samplers.vllm.engine import Engine, EngineSettings
    from rlcore.samplers.vllm.process_engine import ProcessEngine
    from rlcore.samplers.vllm.sampler import VllmSampler

ROOT = Path(__file__).resolve().parents[2]
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


def declare_entry_point() -> None:
    """Let vLLM's processes find the entry point of pyproject.toml where rlharness is not installed."""
    if entry_points(group="vllm.general_plugins", name="rlcore"):
        return
    sys.path.insert(0, write_entry_point())


def write_entry_point() -> str:
    """Return a directory for PYTHONPATH in which rlharness has its entry points, as where it is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = project["entry-points"]["vllm.general_plugins"]
    directory = tempfile.TemporaryDirectory(prefix="rlharness-entry-point-")
    atexit.register(directory.cleanup)
    info = Path(directory.name) / "rlharness-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rlharness\nVersion: 0\n", "utf-8")
    lines = ["[vllm.general_plugins]", *(f"{name} = {value}" for name, value in declared.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return directory.name


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


@contextmanager
def process_engine(decoder: Decoder, **settings: int) -> Iterator["ProcessEngine"]:
    """Start an engine in a process of its own; it is ended at the end."""
    from rlcore.samplers.vllm.engine import EngineSettings
    from rlcore.samplers.vllm.process_engine import ProcessEngine

    declare_entry_point()
    wanted = EngineSettings(max_length=decoder.config.max_length, concurrency=CONCURRENCY)
    engine = ProcessEngine.start(decoder, replace(wanted, **settings))
    try:
        yield engine
    finally:
        engine.close()


def give_weights(engine: "ProcessEngine", decoder: Decoder) -> None:
    """Let an engine have a copy of a decoder's weights, as one that has just been started."""
    from harness.bits.tensor_digests import weights_digest
    from rlcore.weights.remote import RemoteTarget

    parameters = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
    target = RemoteTarget(engine.ask)
    target.begin(0)
    target.write(parameters.items())
    target.commit(weights_digest(parameters))
    engine.resume()
    assert engine.reset_cache()
