"""vLLM in a process of its own: the engine of a sampler, or of a reward model.

    this process                       the engine's process
    add, rank ───▶ LLMEngine ───────▶ scheduler, passes
    step      ◀───           ◀───────
    ask       ──────────────────────▶ EngineExtension, between passes

At level invariant the engine computes on while the caller looks at what was drawn; else it waits, since bits depend on
which requests a pass computes together. Its process ends with the last reference to it, with `close`, and with the
trainer's process, however that ends.
"""

import json
import os
import pickle
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import ceil
from multiprocessing import connection
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

from harness.bits.tensor_digests import weights_digest
from rlcore.errors import InvalidValueError, RlcoreError, WorkerDiedError, WorkerError
from rlcore.models.config import written_config
from rlcore.models.decoder import Decoder
from rlcore.samplers.vllm.plugin import Trainer, register_model
from rlcore.samplers.vllm.stock import check_head_width
from rlcore.samplers.vllm.versions import check_device, installed_version, isolated
from rlcore.weights.remote import RemoteTarget

EXTENSION = "rlcore.samplers.vllm.extension.EngineExtension"
BLOCK_MULTIPLE = 32
"""Blocks of the cache of vLLM's own attention on a CPU have a multiple of so many tokens."""
SPAWNED = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a trainer has threads
    "VLLM_BATCH_INVARIANT": "0",  # it replaces torch's operations, rlcore's too, by kernels for GPUs
    "OMP_NUM_THREADS": "1",  # until a level says otherwise: products of more threads may have other bits
    "PYTHONWARNINGS": "ignore",  # this and what follows: lines that no user can act upon
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TORCH_LOGS": "-torch._library.triton",
}
"""Variables of the engine's process."""
Report = Callable[[str], None]


class EngineProcess:
    """An LLMEngine whose scheduler and model are in a child process; `close` ends it, as its last reference does."""

    def __init__(
        self, role: str, arguments: Mapping[str, Any], trainer: Trainer, *, device: str, report: Report
    ) -> None:
        """Start it with vLLM's arguments; `report` receives a line of what took seconds.

        Raises InvalidValueError where vLLM computes on another device or refuses the arguments, WorkerError where the
        process does not start.
        """
        self.role, began = role, perf_counter()
        with isolated():
            check_device(device)
            from vllm import EngineArgs
            from vllm.v1.engine.llm_engine import LLMEngine

            register_model()
            engine_args = EngineArgs(
                **arguments,
                skip_tokenizer_init=True,
                seed=0,
                enforce_eager=True,
                async_scheduling=False,
                use_tqdm_on_load=False,
                disable_log_stats=True,
                additional_config=trainer,
                scheduler_cls="rlcore.samplers.vllm.scheduler.WaitingScheduler",
            )
            try:
                with patch.dict(os.environ, SPAWNED):
                    self.llm = LLMEngine.from_engine_args(engine_args, enable_multiprocessing=True)
            except ValueError as error:
                reason = str(error).strip().splitlines()[-1]
                raise InvalidValueError(
                    f"vLLM refuses these settings of the {role}: {reason}", legal="see `sampler`"
                ) from error
            except RuntimeError as error:
                raise WorkerError(
                    f"the {role}'s process ended while it started: {error}",
                    role=role,
                    remedy="correct what its own lines above name",
                ) from error
        core = self.llm.engine_core
        core.call_utility("pause_scheduler", "keep", False)  # the first pass waits too
        (self._process,) = core.resources.engine_manager.processes
        parts = (self._process, core.resources, core.utility_results, core.outputs_queue)
        threading.Thread(target=_tell_of_death, args=parts, name="rlcore-engine", daemon=True).start()
        self.close = weakref.finalize(self, _end, core.resources, core._finalizer, core.output_queue_thread)
        report(f"{role}: engine ready after {perf_counter() - began:.1f} s")

    def outputs(self) -> list[Any]:
        """Let a pass begin, if the last one has ended; wait for one, and return what vLLM says of it."""
        with self.alive():
            self.llm.engine_core.call_utility("resume_scheduler")
            return list(self.llm.step())

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return int(self._process.pid)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Raise WorkerDiedError where a call inside finds that the process has ended."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            yield
        except EngineDeadError as error:
            self._process.join(10.0)
            time.sleep(0.1)  # or another thread has asked the system how it ended, and not kept the answer yet
            code = self._process.exitcode or 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            raise WorkerDiedError(
                f"the {self.role}'s process, pid {self.pid}, {how}",
                role=self.role,
                rank=0,
                pid=self.pid,
                remedy="resume from the last checkpoint: --set output.resume=RUN; or let a run do so by itself: --set"
                " deployment.on_worker_death=restart. The kernel's log says whether memory was short",
            ) from error


def _end(resources: Any, finalizer: Any, thread: threading.Thread) -> None:
    """End the process, which has nothing to save, and what this process has of vLLM's client, but not the client."""
    resources.engine_manager.shutdown(timeout=0.0)
    finalizer()
    thread.join(5.0)  # it closes its socket
    resources.ctx.destroy(linger=0)  # vLLM leaves it to the collector, with a warning


def _tell_of_death(process: Any, resources: Any, utility_results: dict[int, Any], outputs: Any) -> None:
    """Wake the callers who wait for a process that has ended: vLLM's own watch lets them wait for ever."""
    from vllm.v1.engine.exceptions import EngineDeadError

    connection.wait([process.sentinel])
    resources.engine_dead = True  # so that no call begins to wait from now on
    for future in list(utility_results.values()):
        if not future.done():
            future.set_exception(EngineDeadError())
    utility_results.clear()  # errors have frames, which keep the engine
    outputs.put(EngineDeadError())


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How vLLM works. At level invariant none of it moves a bit."""

    max_length: int
    """Tokens of the longest prompt and completion together."""
    concurrency: int
    """Requests that are decoded together."""
    block_size: int = 8
    """Tokens of a block of the cache; a shared prefix is found block by block."""
    num_blocks: int = 0
    """Blocks of the cache; 0: as many as `concurrency` requests of the greatest length fill."""
    max_batched_tokens: int = 8192
    """Tokens of one pass: longer prompts are read in chunks."""
    is_stock: bool = False
    """Whether the model is vLLM's own, and not rlcore's decoder."""

    def check(self) -> None:
        """Raise InvalidValueError if the cache does not hold one request of the greatest length."""
        least = ceil(self.max_length / self.block_size) + 1
        if self.blocks < least:
            raise InvalidValueError(
                f"sampler.num_blocks is {self.num_blocks}",
                legal=f"{least} or more: one sequence of {self.max_length} tokens in blocks of {self.block_size}, and a"
                " block that vLLM keeps empty; or 0, for as many as runtime.concurrency sequences fill",
                remedy=f"--set sampler.num_blocks={least}",
            )

    @property
    def blocks(self) -> int:
        """Blocks of the cache; vLLM keeps one of them empty."""
        return self.num_blocks or self.concurrency * ceil(self.max_length / self.block_size) + 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens that a pass drew for one request."""

    request_id: str
    tokens: list[int]
    logprobs: list[float]
    is_finished: bool
    ranked: list[tuple[int, float]]
    """Of a request for several log-probabilities: tokens with them, in no order, -inf for none; empty for others."""

    @classmethod
    def of(cls, output: Any) -> "Drawn":
        """Read what vLLM says of a request, a RequestOutput."""
        (one,) = output.outputs
        tokens, reported = list(one.token_ids), one.logprobs or ()
        logprobs = [entry[token].logprob for entry, token in zip(reported, tokens, strict=True)]
        ranked = [(token, of.logprob) for entry in reported if len(entry) > 1 for token, of in entry.items()]
        return cls(output.request_id, tokens, logprobs, bool(output.finished), ranked)


class Engine(EngineProcess):
    """The engine of a sampler, with a copy of a decoder's weights. Earlier requests are served first."""

    def __init__(self, decoder: Decoder, settings: EngineSettings, report: Report = lambda line: None) -> None:
        """As `EngineProcess`. Raises InvalidValueError where vLLM cannot be used here too."""
        report(f"sampler: loading vLLM {installed_version()}")
        self.config, self.settings = decoder.config, settings
        self._numbers = count()
        dtype, device = str(decoder.embedding.dtype).removeprefix("torch."), str(decoder.embedding.device)
        config_json = written_config(decoder.config, dtype)
        page = 2 * decoder.config.num_kv_heads * decoder.config.head_width * decoder.embedding.element_size()
        cache_bytes = settings.blocks * settings.block_size * page * decoder.config.num_layers
        with isolated(), tempfile.TemporaryDirectory(prefix="rlcore-vllm-") as directory:
            from rlcore.samplers.vllm.draw import KeyedDraw
            from rlcore.samplers.vllm.model import ARCHITECTURE

            if settings.is_stock:
                check_head_width(
                    decoder.config.head_width,
                    "sampler.model stock with a model",
                    "--set sampler.model=own computes any width; or choose another model.width or model.num_heads",
                )
            else:
                config_json["architectures"] = [ARCHITECTURE]
            Path(directory, "config.json").write_text(json.dumps(config_json), "utf-8")
            arguments = {
                "model": directory,
                "load_format": "dummy",
                "dtype": dtype,
                "max_model_len": settings.max_length,
                "max_num_seqs": settings.concurrency,
                "max_num_batched_tokens": settings.max_batched_tokens,
                "enable_chunked_prefill": True,
                "enable_prefix_caching": True,
                "block_size": settings.block_size,
                "num_gpu_blocks_override": settings.blocks,
                "logprobs_mode": "processed_logits",
                "max_logprobs": -1,  # as many as the vocabulary has
                "logits_processors": [KeyedDraw],
                "scheduling_policy": "priority",
                "worker_extension_cls": EXTENSION,
                "kv_cache_memory_bytes": cache_bytes,
            }
            super().__init__("sampler", arguments, Trainer(decoder.config, False), device=device, report=report)
        parameters = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
        first = RemoteTarget(self.ask)
        first.begin(0)
        first.write(parameters.items())
        first.commit(weights_digest(parameters))
        report(f"sampler: {settings.blocks * settings.block_size:,} tokens in {settings.blocks:,} blocks")

    def add(
        self,
        prompt: Sequence[int],
        drawn_by: Mapping[str, Any],
        *,
        max_tokens: int = 1,
        stop_ids: Sequence[int] = (),
        num_logprobs: int = 0,
        is_streamed: bool = True,
    ) -> str:
        """Queue a request whose tokens are drawn as `draw.draw_argument` has said; return its id.

        They are returned as they are drawn, or together at the end, which costs vLLM and its caller less; with the
        log-probability of each, or of `num_logprobs` tokens.
        """
        from vllm import SamplingParams as EngineParams
        from vllm.sampling_params import RequestOutputKind

        number = next(self._numbers)
        wanted = EngineParams(
            max_tokens=max_tokens,
            temperature=0.0,  # the largest logit: KeyedDraw has drawn it
            logprobs=num_logprobs,  # and that of the drawn token
            ignore_eos=True,  # it is one of the stop ids
            stop_token_ids=list(stop_ids),
            detokenize=False,
            extra_args=dict(drawn_by),
            output_kind=RequestOutputKind.DELTA if is_streamed else RequestOutputKind.FINAL_ONLY,
        )
        with self.alive():
            self.llm.add_request(str(number), {"prompt_token_ids": list(prompt)}, wanted, priority=number)
        return str(number)

    def step(self) -> list[Drawn]:
        """Wait for a pass; return what it drew."""
        return [Drawn.of(output) for output in self.outputs()]

    def first_tokens(self, request_ids: Sequence[str]) -> list[Drawn]:
        """Return what is drawn for requests of one token each, in their order; however it ends, none is left."""
        found: dict[str, Drawn] = {}
        left = set(request_ids)
        try:
            while left:
                found |= {drawn.request_id: drawn for drawn in self.step() if drawn.request_id in left}
                left -= found.keys()
        finally:
            if left:
                self.abort(sorted(left))
        return [found[each] for each in request_ids]

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; of an engine that has ended, nothing."""
        self.llm.abort_request(list(request_ids))

    def preempt(self) -> None:
        """Let all running requests begin again, from their prompts and the tokens that they have."""
        with self.alive():
            self.llm.reset_prefix_cache(reset_running_requests=True)

    def reset_cache(self) -> bool:
        """Forget the keys and values of finished requests; return whether vLLM did: not while others run."""
        with self.alive():
            return bool(self.llm.reset_prefix_cache())

    def clear_pages(self) -> None:
        """Overwrite all keys and values with zeros: those of failed logits are NaN."""
        self.reset_cache()
        self.ask("clear_pages")

    def ask(self, method: str, *given: Any) -> Any:
        """Return the answer of the `EngineExtension` to a method of `EngineAnswerer`; raises RlcoreError."""
        message = pickle.dumps((method, *given), pickle.HIGHEST_PROTOCOL)
        with self.alive():
            (reply,) = self.llm.collective_rpc("rlcore_answer", args=(message,))
        is_error, answer = pickle.loads(reply)
        if is_error:
            assert isinstance(answer, RlcoreError)
            raise answer
        return answer
