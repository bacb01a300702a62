"""Inference: a pure function of (version of the weights, tokens, key), as OpenAI's completions. It keeps nothing.

    POST /v1/completions {"model": "step_3", "prompt": [ids], "seed": key, "max_tokens": 32, "temperature": 1.0}
      ─▶ {"choices": [{"text", "token_ids", "logprobs": {"token_logprobs"}, "finish_reason"}], "system_fingerprint"}

One thread: between two tokens it takes what has arrived, and admits it. Completions that run together are of one
version; if none runs, the version that has waited longest is loaded. The fingerprint is the digest of the weights. What
decodes is a `Backend`: the local decoder, or `rlcore.asynchronous.vllm_backend`.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Field, Strict
from safetensors.torch import load
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor

from harness.bits.files import parse_object
from harness.bits.tensor_digests import weights_digest
from rlcore.asynchronous.directory import WEIGHTS, read
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
    """The decoder of this process, as `Backend`."""

    def load(self, weights: Mapping[str, Tensor]) -> str:
        """As `Backend.load`."""
        self._decoder.load_state_dict(weights)
        return weights_digest(dict(self._decoder.named_parameters()))


@dataclass(slots=True, eq=False)
class Wanted:
    """A completion that a client waits for."""

    version: int
    request: SampleRequest
    answer: "asyncio.Future[RunningSequence]"
    number: int = -1
    """In the batch; -1 before it is there."""
    digest: str = ""
    """Of the weights that draw it."""
    began_s: float = 0.0
    """When it was put into the batch."""
    ended_s: float = 0.0


class Inference:
    """One decoder, with the weights that are asked for, and the completions on their way through it."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: Tokenizer,
        broadcasts: Path,
        *,
        concurrency: int,
        length: int,
        backend: Backend | None = None,
    ) -> None:
        """Read weights from `broadcasts`; completions have up to `length` tokens, with their prompts.

        None as the backend is the local one.
        """
        self._backend: Backend = (
            LocalBackend(decoder, tokenizer, concurrency=concurrency) if backend is None else backend
        )
        self._tokenizer, self._broadcasts = tokenizer, broadcasts
        self._concurrency, self._config = concurrency, replace(decoder.config, max_length=length)
        self._waiting: list[Wanted] = []
        self._running: dict[int, Wanted] = {}
        self._arrived = asyncio.Event()
        self._version, self._digest = -1, ""
        self._base: Decoder | None = decoder

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
        name = f"step_{self._version}"
        about = {"id": name, "object": "model", "waiting": len(self._waiting), "running": len(self._running)}
        return JSONResponse({"object": "list", "data": [about], "places": self._concurrency})

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
            if not len(self._backend):
                self._arrived.clear()
                await self._arrived.wait()
                continue
            try:
                for done in self._backend.step():
                    wanted = self._running.pop(done.number)
                    wanted.ended_s = time.monotonic()
                    wanted.answer.set_result(done)
            except Exception as error:  # is the answer, and the server goes on
                for number, each in self._running.items():
                    each.answer.set_exception(error)
                    self._backend.drop(number)
                self._running.clear()
                self._version = -1
            await asyncio.sleep(0)

    def _admit(self) -> None:
        """Put what waits for the loaded version into the batch; into an empty one, what has waited longest."""
        while self._waiting and not len(self._backend) and self._waiting[0].version != self._version:
            wanted = self._waiting[0]
            try:
                content = read(self._broadcasts, wanted.version, WEIGHTS)
                self._base = None
                self._digest = self._backend.load(load(content))
                self._version = wanted.version
            except Exception as error:  # is the answer, and the server goes on
                self._version = -1
                self._waiting.remove(wanted)
                wanted.answer.set_exception(error)
        for wanted in [each for each in self._waiting if each.version == self._version]:
            wanted.number, wanted.digest, wanted.began_s = (
                self._backend.put(wanted.request),
                self._digest,
                time.monotonic(),
            )
            self._running[wanted.number] = wanted
        self._waiting = [each for each in self._waiting if each.version != self._version]

    def _forget(self, wanted: Wanted) -> None:
        wanted.answer.cancel()
        if wanted in self._waiting:
            self._waiting.remove(wanted)
        elif self._running.pop(wanted.number, None) is not None:
            self._backend.drop(wanted.number)


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
