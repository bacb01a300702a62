"""A client of a server that speaks the completions API as vLLM does: token ids in, log-probabilities back."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeVar
from urllib.parse import urlsplit

from harness.bits.files import parse_object
from rlcore.errors import InvalidValueError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_ANSWER_BYTES = 1 << 28
KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY")
"""Variables that may hold the server's key."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Scored:
    """Log-probabilities of a prompt and of what the server decoded after it, in nats."""

    prompt: tuple[float, ...]
    """Of each token of the prompt but the first."""
    decoded_tokens: tuple[int, ...]
    decoded: tuple[float, ...]
    """Of each decoded token."""


@dataclass(frozen=True, slots=True)
class CompletionsServer:
    """A server at an address. Raises InvalidValueError where it cannot be reached, refuses, or answers wrongly."""

    url: str
    """Address without /v1, as http://localhost:8000."""
    timeout_s: float = 60.0

    def models(self) -> list[str]:
        """Return the names under which models are served."""
        return self._ask("/v1/models", lambda answer: [str(each["id"]) for each in answer["data"]])

    def score(self, model: str, prompt: Sequence[int], num_decoded: int) -> Scored:
        """Return what the server computes for a prompt: what a canary compares.

        Two requests, since vLLM reads no prefix cache for a prompt's log-probabilities.
        """
        common = {"model": model, "prompt": list(prompt), "temperature": 0, "return_token_ids": True}

        def of_prompt(answer: Any) -> tuple[float, ...]:
            pairs = zip(answer["choices"][0]["prompt_logprobs"], prompt, strict=True)
            return tuple(float(each[str(token)]["logprob"]) for each, token in list(pairs)[1:])

        def of_decoded(answer: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
            choice = answer["choices"][0]
            return tuple(map(index, choice["token_ids"])), tuple(map(float, choice["logprobs"]["token_logprobs"]))

        path = "/v1/completions"
        given = self._ask(path, of_prompt, common | {"max_tokens": 1, "prompt_logprobs": 0})
        drawn = self._ask(path, of_decoded, common | {"max_tokens": num_decoded, "logprobs": 0, "ignore_eos": True})
        if any(each > 0 for each in (*given, *drawn[1])):
            legal = "--logprobs-mode raw_logprobs"
            raise InvalidValueError(f"{self.url} reports logits, not log-probabilities", legal=legal)
        return Scored(given, *drawn)

    def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        """Call a method of every worker, as `LLM.collective_rpc` does; the server needs VLLM_SERVER_DEV_MODE=1."""
        return self._ask(
            "/collective_rpc", lambda answer: list(answer["results"]), {"method": method, "args": list(args)}
        )

    def _ask(self, path: str, read: Callable[[Any], Result], body: dict[str, Any] | None = None) -> Result:
        """Return what is read of the JSON answer."""
        answer = self._answer(self.url.rstrip("/") + path, body)
        try:
            return read(answer)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise InvalidValueError(
                f"the answer of {self.url} cannot be read: {error!r:.300}",
                legal="an answer of vLLM's OpenAI API, 0.10 or newer",
                remedy="ask the server itself: a proxy may drop what OpenAI's API does not have",
            ) from error

    def _answer(self, url: str, body: dict[str, Any] | None) -> dict[str, Any]:
        headers, data = {"Content-Type": "application/json"}, None if body is None else json.dumps(body).encode()
        if key := next((os.environ[name] for name in KEYS if os.environ.get(name)), ""):
            headers["Authorization"] = f"Bearer {key}"
        try:
            is_near = urlsplit(url).hostname in LOOPBACK
            opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_near else []))
            with opener.open(urllib.request.Request(url, data, headers), timeout=self.timeout_s) as answer:
                return parse_object(answer.read(MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            said = error.read(500).decode("utf-8", "replace").strip()
            raise InvalidValueError(
                f"{url} answers {error.code}: {said or error.reason}",
                legal="an answer of vLLM's OpenAI API",
                remedy=f"export {KEYS[0]}=... with the server's key" if error.code == 401 else "see the server's log",
            ) from error
        except (OSError, ValueError) as error:
            raise InvalidValueError(
                f"no server of completions at {url}: {getattr(error, 'reason', error)}",
                legal="the address of a running server, as http://localhost:8000",
                remedy="vllm serve CHECKPOINT --port 8000",
            ) from error
