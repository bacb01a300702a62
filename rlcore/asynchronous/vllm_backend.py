"""Backend of the inference server that decodes with vLLM: at level invariant, bits are those of the torch backend.

    load: local copy ──sync──▶ engine        put ─▶ add        step ─▶ one pass ─▶ tokens        drop ─▶ abort

Every load is a proven sync, which reads the engine's weights back and compares a pass. Imports vLLM: import this module
inside `rlcore.samplers.vllm.versions.isolated`.
"""

import math
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from torch import Tensor

from rlcore.errors import NonFiniteError, WorkerDiedError
from rlcore.models.decoder import Decoder
from rlcore.samplers.base import RunningSequence
from rlcore.samplers.vllm.engine import Engine, EngineSettings, Report
from rlcore.samplers.vllm.sampler import VllmSampler
from rlcore.types import SampleRequest, Tokenizer
from rlcore.weights.canary import NUM_TOKENS
from rlcore.weights.proven_sync import sync
from rlcore.weights.receipts import Receipt

CACHE_BYTES = 4 << 30
"""Bound of the cache of keys and values. vLLM preempts requests that do not fit, which changes no bit."""


class VllmBackend(VllmSampler):
    """As `rlcore.asynchronous.infer.Backend`. A pass blocks the caller, as one of the torch backend does."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        *,
        concurrency: int,
        length: int,
        report: Report,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Start an engine for sequences of up to `length` tokens. Raises as `Engine`.

        The decoder is the local copy of the weights, which only `load` writes.
        """
        config, size = decoder.config, decoder.embedding.element_size()
        settings = EngineSettings(max_length=min(config.max_length, max(length, NUM_TOKENS)), concurrency=concurrency)
        block = settings.block_size * config.num_layers * 2 * config.num_kv_heads * config.head_width * size
        settings = replace(settings, num_blocks=min(settings.blocks, cache_bytes // block))
        super().__init__(Engine(decoder, settings, report), tokenizer)
        self._decoder, self._report = decoder, report
        self._running: dict[int, RunningSequence] = {}
        self._drawing = ExitStack()
        self._receipt: Receipt | None = None

    def load(self, weights: Mapping[str, Tensor]) -> str:
        """As `Backend.load`. Raises WeightSyncError if the engine does not hold them, or does not compute with them."""
        with self._ending_with_engine():
            self._drawing.close()
            self._decoder.load_state_dict(weights, strict=self._decoder.config.lora is None)
            previous, self._receipt = self._receipt, None  # none is left of a sync that fails
            if previous is None:
                self.engine.clear_pages()  # a failure leaves NaN, which later requests would read
            version = self.weight_target.policy_version + 1  # the policy's may come again, and a target's rise
            self._receipt = sync(self._decoder, self.weight_target, version, previous)
            self._drawing.enter_context(self.weight_target.sampling())
        return self._receipt.weights_digest

    def put(self, request: SampleRequest) -> int:
        """As `Backend.put`."""
        with self._ending_with_engine():
            number = int(self._add(request))
        self._running[number] = RunningSequence.of(number, request, self._tokenizer)
        return number

    def drop(self, number: int) -> None:
        """As `Backend.drop`."""
        if self._running.pop(number, None) is not None:
            self.engine.abort([str(number)])

    def step(self) -> list[RunningSequence]:
        """As `Backend.step`."""
        with self._ending_with_engine():
            drawn = self.engine.step()
        for each in drawn:
            sequence = self._running[int(each.request_id)]
            for token, logprob in zip(each.tokens, each.logprobs, strict=True):
                sequence.put(token, logprob)
            if any(map(math.isnan, each.logprobs)):
                self._receipt = None
                raise NonFiniteError(f"{sequence.request.name} has log-probabilities that are NaN")
        done = [sequence for sequence in self._running.values() if sequence.is_done]
        for sequence in done:
            self.drop(sequence.number)  # one that a text has ended goes on in the engine
        return done

    def __len__(self) -> int:
        return len(self._running)

    @contextmanager
    def _ending_with_engine(self) -> Iterator[None]:
        """End this process where the engine's has ended: a supervisor starts both again, and clients ask again."""
        try:
            yield
        except WorkerDiedError as error:
            self._report(error.what)
            os.kill(os.getpid(), signal.SIGKILL)
