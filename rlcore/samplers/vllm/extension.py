"""The part of rlcore within the engine's process: answers the trainer's questions about weights, level and cache.

vLLM adds `EngineExtension` to its worker, and calls it between passes, in the thread that computes them. So no pass
ever sees half of a sync.
"""

import pickle
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from rlcore.errors import RlcoreError
from rlcore.samplers.local_target import LocalTarget
from rlcore.samplers.vllm.levels import Level, LevelSwitch
from rlcore.weights.remote import Answerer

if TYPE_CHECKING:
    from rlcore.samplers.vllm.model import RlcoreForCausalLM

_set_num_threads = torch.set_num_threads  # vLLM's worker replaces it on a CPU, after this module is imported


class EngineAnswerer(Answerer):
    """Answers the questions of a weight target, and those of a sampler: enter, leave, follow, clear_pages."""

    def __init__(self, model: "RlcoreForCausalLM") -> None:
        torch.set_num_threads = _set_num_threads
        self._local, self._model = LocalTarget(model.decoder), model
        self._levels = LevelSwitch(model.decoder.config, model.decoder.embedding)
        self._sampling = ExitStack()
        super().__init__(self._local)

    def __call__(self, method: str, *given: Any) -> Any:
        """As `Answerer`; raises LevelError where a level does not hold here."""
        match method, given:
            case "follow", (Level() as level,):
                self._levels.follow(level)
            case "enter", (Level() as level,):
                self._levels.follow(level)
                self._sampling.enter_context(self._local.sampling())
            case "leave", ():
                self._sampling.close()
            case "clear_pages", ():
                for pages in self._model.pages():
                    pages.zero_()
            case _:
                return super().__call__(method, *given)
        return None


class EngineExtension:
    """What vLLM's worker answers beyond its own methods."""

    model_runner: Any

    def rlcore_answer(self, message: bytes) -> bytes:
        """Answer a pickled (method, *arguments); the reply is pickled too: (is an error, the error or answer)."""
        answerer = self.__dict__.get("rlcore_answerer")
        if answerer is None:
            answerer = self.__dict__["rlcore_answerer"] = EngineAnswerer(self.model_runner.model)
        try:
            reply = False, answerer(*pickle.loads(message))
        except RlcoreError as error:
            reply = True, error
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
