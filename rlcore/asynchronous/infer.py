"""Inference: a pure function of (version of the weights, tokens, key), as OpenAI's completions. It keeps nothing.

    POST /v1/completions {"model": "step_3", "prompt": [ids], "seed": key, "max_tokens": 32, "temperature": 1.0}
      ─▶ {"choices": [{"text", "token_ids", "logprobs": {"token_logprobs"}, "finish_reason"}], "system_fingerprint"}

One thread: between two tokens it takes what has arrived, and admits it. Of adapters several versions are resident over
one base, else one version is. The fingerprint is the digest of the weights. What decodes is a `Backend`: the local
decoder, or `rlcore.asynchronous.vllm_backend`.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Field, Strict
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor

from harness.bits.files import parse_object
from rlcore.asynchronous.broadcast import NORMS, Digests, from_files
from rlcore.asynchronous.directory import path_of, read
from rlcore.config import AtLeast0, Positive, Section, Texts, read_section
from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.samplers.base import RunningSequence, check_requests
from rlcore.samplers.batching import ContinuousBatch
from rlcore.samplers.stopping import reason
from rlcore.types import Prompt, SampleRequest, SamplingParams, Tokenizer


class Asked(Section):
    """A request, by the names of OpenAI."""

    model: Annotated[str, Field(pattern=r"^(base|step_\d+)$")]
    """base: the checkpoint, to echo a teacher's log-probabilities; only before a version is loaded."""
    echo: bool = False
    prompt: Annotated[tuple[int, ...], Strict(False)]
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    max_tokens: Positive
    temperature: AtLeast0 = 1.0
    stop: Texts = ()
    logprobs: int = 0
    n: Literal[1] = 1


class Backend(Protocol):
    """Decodes completions of one version of the weights, with the methods of `ContinuousBatch`. It holds one thread."""

    def load(self, weights: Mapping[str, Tensor]) -> str:
        """Take weights, while it has no requests and after an error; return their digest. Raises RlcoreError."""

    def put(self, request: SampleRequest) -> int:
        """Take a request; return its number."""

    def drop(self, number: int) -> None:
        """Forget a request."""

    def step(self) -> list[RunningSequence]:
        """Draw a token or more of what runs; return what is done. Raises RlcoreError."""

    def __len__(self) -> int:
        """Return how many requests it has."""


class LocalBackend(ContinuousBatch):
    """A decoder of this process, as `Backend`. Others may share the base of its adapters, but not its norm weights."""

    def __init__(self, decoder: Decoder, tokenizer: Tokenizer, *, concurrency: int) -> None:
        super().__init__(decoder, tokenizer, concurrency=concurrency)
        self._digests = Digests(decoder)
        for name, parameter in decoder.named_parameters():
            if name.endswith("norm"):
                parameter.data = parameter.data.clone()

    def load(self, weights: Mapping[str, Tensor]) -> str:
        """As `Backend.load`."""
        self._decoder.load_state_dict(weights, strict=self._decoder.config.lora is None)
        own = dict(self._decoder.named_parameters())
        return self._digests.of(self._decoder, {name: own[name] for name in weights})


@dataclass(slots=True, eq=False)
class Wanted:
    """A completion that a client waits for."""

    version: int
    request: SampleRequest
    answer: "asyncio.Future[RunningSequence]"
    resident: "Resident | None" = None
    """Whose batch it is in."""
    number: int = -1
    """In the batch."""
    digest: str = ""
    """Of the weights that draw it."""
    began_s: float = 0.0
    """When it was put into the batch."""
    ended_s: float = 0.0


@dataclass(slots=True, eq=False)
class Resident:
    """A version of the weights, what decodes with it, and its completions."""

    backend: Backend
    version: int = -1
    """-1: none, or one that has failed."""
    digest: str = ""
    running: dict[int, Wanted] = field(default_factory=dict)


class Inference:
    """Versions of the weights that are asked for, and the completions on their way through them."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        broadcasts: Path,
        *,
        concurrency: int,
        length: int,
        backends: Sequence[Backend] = (),
        base: Decoder | None = None,
    ) -> None:
        """Read weights from `broadcasts`; completions have up to `length` tokens, with their prompts.

        Each backend holds a version; by default there is one, which decodes with this decoder. `base` has the weights
        of the checkpoint, until a version without adapters is loaded.
        """
        self._residents = [
            Resident(each) for each in backends or [LocalBackend(decoder, tokenizer, concurrency=concurrency)]
        ]
        self._tokenizer, self._broadcasts = tokenizer, broadcasts
        self._concurrency, self._config = concurrency, replace(decoder.config, max_length=length)
        self._waiting: list[Wanted] = []
        self._arrived = asyncio.Event()
        self._base: Decoder | None = base or decoder

    def app(self) -> Starlette:
        """Return the application, which decodes for as long as it is served."""

        @asynccontextmanager
        async def decoding(_: Starlette) -> AsyncIterator[None]:
            task = asyncio.create_task(self._decode())
            task.add_done_callback(_end_with)
            yield
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        routes = [
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/health", lambda _: Response()),
        ]
        return Starlette(routes=routes, lifespan=decoding)

    async def models(self, _: Request) -> JSONResponse:
        """Answer with what is loaded, and how many completions are on their way."""
        waiting = Counter(each.version for each in self._waiting)
        running = {each.version: len(each.running) for each in self._residents}
        data = [
            {
                "id": f"step_{version}",
                "object": "model",
                "waiting": waiting[version],
                "running": running.get(version, 0),
            }
            for version in sorted({*running, *waiting})
        ]
        return JSONResponse({"object": "list", "data": data, "places": self._concurrency})

    async def complete(self, request: Request) -> JSONResponse:
        """Answer one completion; 400 for what cannot be done, 404 for weights that are not there, 500 for a failure."""
        try:
            asked = read_section(Asked, parse_object(await request.body()))
            if asked.echo or asked.model == "base":
                return self._echo(asked)
            wanted = self._read(asked)
        except (InvalidValueError, ValueError) as error:
            return _failure(400, error)
        except ClientDisconnect as error:
            return _failure(499, error)
        self._waiting.append(wanted)
        self._arrived.set()
        gone = asyncio.create_task(_gone(request))
        gone.add_done_callback(lambda _: self._forget(wanted))
        try:
            done = await asyncio.shield(wanted.answer)  # nothing cancelled is among those that wait or run
        except asyncio.CancelledError:
            self._forget(wanted)
            return _failure(499, ConnectionError("the client has hung up"))
        except Exception as failed:  # whatever a step has raised
            return _failure(404 if isinstance(failed, CheckpointError) else 500, failed)
        finally:
            gone.cancel()
        ended = reason(
            done.tokens, done.request.params, self._tokenizer.eos_id, by_text=bool(done.text and done.text.is_found)
        )
        choice = {
            "index": 0,
            "text": self._tokenizer.decode(done.tokens),
            "token_ids": done.tokens,
            "logprobs": {"token_logprobs": done.logprobs},
            "finish_reason": "length" if ended == "length" else "stop",
            "stop_reason": ended,
        }
        usage = {
            "completion_tokens": len(done.tokens),
            "seconds": wanted.ended_s - wanted.began_s,
            "places": self._concurrency,
        }
        return JSONResponse(
            {
                "model": f"step_{wanted.version}",
                "choices": [choice],
                "system_fingerprint": wanted.digest,
                "usage": usage,
            }
        )

    def _echo(self, asked: Asked) -> JSONResponse:
        """Answer with the checkpoint's log-probabilities of a prompt. Raises InvalidValueError."""
        if self._base is None or asked.model != "base" or not asked.echo:
            raise InvalidValueError(f"an echo of {asked.model} of this server", legal="base, of a teacher's server")
        given = logprobs_of(self._base, asked.prompt, asked.temperature)
        return JSONResponse({"model": asked.model, "choices": [{"index": 0, "prompt_logprobs": given}]})

    def _read(self, asked: Asked) -> Wanted:
        """Read a request. Raises InvalidValueError."""
        params = SamplingParams(
            max_tokens=asked.max_tokens,
            temperature=asked.temperature,
            stop_ids=self._tokenizer.stop_ids,
            stop_strings=asked.stop,
        )
        request = SampleRequest(Prompt("", "", asked.prompt), 0, asked.seed, params)
        check_requests([request], self._config)
        version = int(asked.model.removeprefix("step_"))
        return Wanted(version, request, asyncio.get_running_loop().create_future())

    async def _decode(self) -> None:
        """Decode a token of all that run, over and over; requests that have arrived meanwhile join them."""
        while True:
            self._admit()
            if not (busy := [each for each in self._residents if len(each.backend)]):
                self._arrived.clear()
                await self._arrived.wait()
                continue
            for resident in busy:
                try:
                    for done in resident.backend.step():
                        wanted = resident.running.pop(done.number)
                        wanted.ended_s = time.monotonic()
                        wanted.answer.set_result(done)
                except Exception as error:  # is the answer, and the server goes on
                    for number, each in resident.running.items():
                        each.answer.set_exception(error)
                        resident.backend.drop(number)
                    resident.running.clear()
                    resident.version = -1
            await asyncio.sleep(0)

    def _admit(self) -> None:
        """Put what waits into the batch of its version, which is loaded in place of the oldest idle one."""
        for wanted in [*self._waiting]:
            resident = next((each for each in self._residents if each.version == wanted.version), None)
            if resident is None:
                idle = [each for each in self._residents if not len(each.backend)]
                if not idle:
                    continue
                resident = min(idle, key=lambda each: each.version)
                try:
                    self._load(resident, wanted.version)
                except Exception as error:  # is the answer, and the server goes on
                    resident.version = -1
                    self._waiting.remove(wanted)
                    wanted.answer.set_exception(error)
                    continue
            self._waiting.remove(wanted)
            wanted.digest, wanted.began_s = resident.digest, time.monotonic()
            wanted.number = resident.backend.put(wanted.request)
            wanted.resident = resident
            resident.running[wanted.number] = wanted

    def _load(self, resident: Resident, version: int) -> None:
        has_norms = (path_of(self._broadcasts, version) / NORMS).exists()
        weights = from_files(partial(read, self._broadcasts, version), self._config, has_norms=has_norms)
        if self._config.lora is None:
            self._base = None
        resident.digest = resident.backend.load(weights)
        resident.version = version

    def _forget(self, wanted: Wanted) -> None:
        wanted.answer.cancel()
        if wanted in self._waiting:
            self._waiting.remove(wanted)
        elif wanted.resident is not None and wanted.resident.running.pop(wanted.number, None) is not None:
            wanted.resident.backend.drop(wanted.number)


@torch.no_grad()
def logprobs_of(decoder: Decoder, tokens: Sequence[int], temperature: float) -> list[float]:
    """Return a decoder's log-probability of each token after the first, at a temperature."""
    given = torch.tensor([tokens], device=decoder.embedding.device)
    logits = decoder.logits(decoder.hidden(given[:, :-1])) / temperature
    return token_logprobs(logits, given[:, 1:])[0].tolist()


def _end_with(decoding: "asyncio.Task[None]") -> None:
    """End the server with what decodes: else requests would wait for ever."""
    if not decoding.cancelled():
        os.kill(os.getpid(), signal.SIGTERM)


async def _gone(request: Request) -> None:
    """Return when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _failure(status: int, error: BaseException) -> JSONResponse:
    said = {"message": getattr(error, "what", None) or repr(error), "legal": getattr(error, "legal", "")}
    return JSONResponse({"error": said | {"remedy": getattr(error, "remedy", "")}}, status_code=status)
