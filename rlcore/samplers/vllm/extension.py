"""The part of rlcore within the engine's process: answers the trainer's questions about weights, level and cache.

vLLM adds `EngineExtension` to its worker, and calls it between passes, in the thread that computes them. So no pass
ever sees half of a sync.
"""

import os
import pickle
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import torch

from rlcore.determinism import at_level, check_level
from rlcore.errors import LevelError, RlcoreError
from rlcore.models.config import DecoderConfig
from rlcore.models.streams import kept_streams
from rlcore.numerics.level import active
from rlcore.samplers.local_target import LocalTarget
from rlcore.samplers.vllm.stock import decoder_of
from rlcore.weights.remote import Answerer

_set_num_threads = torch.set_num_threads  # vLLM's worker replaces it on a CPU, after this module is imported


@dataclass(frozen=True, slots=True)
class Level:
    """How a thread computes: plain values, which pass between processes."""

    name: str
    strategy: str | None
    """Name of the kernel strategy of level invariant."""
    longest: int | None
    """Most keys of attention, as certified."""
    num_threads: int

    @classmethod
    def here(cls) -> Self:
        """Return the level of the calling thread."""
        strategy = active()
        if strategy is not None:
            return cls("invariant", strategy.name, strategy.longest, torch.get_num_threads())
        name = "deterministic" if torch.are_deterministic_algorithms_enabled() else "off"
        return cls(name, None, None, torch.get_num_threads())


class EngineAnswerer(Answerer):
    """Answers the questions of a weight target, and those of a sampler."""

    def __init__(self, runner: Any, config: DecoderConfig) -> None:
        torch.set_num_threads = _set_num_threads
        os.environ.pop("VLLM_BATCH_INVARIANT")  # vLLM has read it, and level invariant wants no such value
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to both; the trainer ends this process
        self._runner = runner
        self._decoder = decoder_of(runner.model, config)
        self._local = LocalTarget(self._decoder)
        self._level: Level | None = None
        self._held, self._sampling, self._watching = ExitStack(), ExitStack(), ExitStack()
        super().__init__(self._local)

    def __call__(self, method: str, *given: Any) -> Any:
        """As `Answerer`; raises LevelError where a level does not hold here."""
        match method, given:
            case "follow", (Level() as level,):
                self._follow(level)
            case "enter", (Level() as level,):
                self._follow(level)
                self._sampling.enter_context(self._local.sampling())
            case "leave", ():
                self._sampling.close()
            case "clear_pages", ():
                for pages in self._runner.kv_caches:
                    pages.zero_()
            case "watch", (Level() as level,):
                self._follow(level)
                layers = getattr(getattr(self._runner.model, "model", None), "layers", ())  # those of a stock model
                self._kept = self._watching.enter_context(kept_streams(self._decoder, layers))
            case "streams", (num_tokens,):
                self._watching.close()
                return dict(self._kept.streams(num_tokens))
            case _:
                return super().__call__(method, *given)
        return None

    def _follow(self, level: Level) -> None:
        """Compute at this level from now on. Raises LevelError where it does not hold in this process."""
        if level == self._level:
            check_level(level.name)
            return
        self._held.close()
        self._level = None
        torch.set_num_threads(level.num_threads)
        config, like = self._decoder.config, self._decoder.embedding
        length = level.longest or config.max_length
        report = self._held.enter_context(
            at_level(level.name, config, dtype=like.dtype, device=str(like.device), length=length)
        )
        if report is not None and report.strategy.name != level.strategy:
            raise LevelError(
                f"the engine's process holds level invariant by {report.strategy.name}",
                legal=f"{level.strategy}, as the trainer",
                remedy="run both with the same libraries on one machine",
            )
        self._level = level


class EngineExtension:
    """What vLLM's worker answers beyond its own methods."""

    model_runner: Any
    vllm_config: Any

    def rlcore_answer(self, message: bytes) -> bytes:
        """Answer a pickled (method, *arguments); the reply is pickled too: (is an error, the error or answer)."""
        answerer = self.__dict__.get("rlcore_answerer")
        if answerer is None:
            config = self.vllm_config.additional_config.config
            answerer = self.__dict__["rlcore_answerer"] = EngineAnswerer(self.model_runner, config)
        try:
            reply = False, answerer(*pickle.loads(message))
        except RlcoreError as error:
            reply = True, error
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
