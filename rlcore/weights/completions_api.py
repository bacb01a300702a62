"""A client of a server that speaks the completions API as vLLM does: token ids in, log-probabilities back."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from typing import Any
from urllib.parse import urlsplit

from harness.bits.files import parse_object
from rlcore.errors import InvalidValueError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_ANSWER_BYTES = 1 << 28
KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY")
"""Variables that may hold the server's key."""


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
    """A server at an address, and one of its models."""

    url: str
    """Address without /v1."""
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise InvalidValueError(f"server {self.url!r}", legal="an address, as http://localhost:8000")

    def model(self, name: str = "") -> tuple[str, int]:
        """Return the served name and the longest sequence (0: not stated) of a model; the only one if `name` is empty.

        Raises InvalidValueError for a name that is not served, and if several are and none is named.
        """
        answer = self._request("/v1/models")
        with self._malformed():
            found = {str(each["id"]): int(each.get("max_model_len") or 0) for each in answer["data"]}
        if (name and name not in found) or (not name and len(found) != 1):
            what = f"model {name!r}" if name else f"{len(found)} models and no name"
            raise InvalidValueError(f"{what} at {self.url}", legal=", ".join(found))
        chosen = name or next(iter(found))
        return chosen, found[chosen]

    def score(self, model: str, prompt: Sequence[int], num_decoded: int) -> Scored:
        """Return what the server computes for a prompt. Two requests: vLLM reads no prefix cache for the first.

        Raises InvalidValueError where the answer has no log-probabilities.
        """
        common = {"model": model, "prompt": list(prompt), "temperature": 0, "return_token_ids": True}
        scored: Any = self._choice(common | {"max_tokens": 1, "prompt_logprobs": 0}).get("prompt_logprobs")
        decoded = self._choice(common | {"max_tokens": num_decoded, "logprobs": 0, "ignore_eos": True})
        with self._malformed():
            tokens: Any = decoded.get("token_ids")
            logprobs: Any = (decoded.get("logprobs") or {}).get("token_logprobs")
            has_all = bool(scored and logprobs) and len(scored) == len(prompt) and tokens is not None
        if not has_all:
            missing = "prompt_logprobs" if not scored else "token_ids or logprobs"
            raise InvalidValueError(
                f"the answer of {self.url} has no {missing}",
                legal="vLLM's /v1/completions, 0.10 or newer",
                remedy="ask the server itself: a proxy may drop what OpenAI's API does not have",
            )
        with self._malformed():
            pairs = zip(scored[1:], prompt[1:], strict=True)
            values = tuple(float(each[str(token)]["logprob"]) for each, token in pairs)
            found = Scored(values, tuple(map(index, tokens)), tuple(map(float, logprobs)))
        if max((*found.prompt, *found.decoded)) > 0:
            raise InvalidValueError(
                f"{self.url} reports logits, not log-probabilities", legal="--logprobs-mode raw_logprobs"
            )
        return found

    def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        """Call a method of every worker, as `LLM.collective_rpc` does; the server needs VLLM_SERVER_DEV_MODE=1."""
        answer = self._request("/collective_rpc", {"method": method, "args": list(args)})
        with self._malformed():
            return list(answer["results"])

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._request("/v1/completions", body)
        with self._malformed():
            return dict(answer["choices"][0])

    @contextmanager
    def _malformed(self) -> Iterator[None]:
        """Raise InvalidValueError for an answer that has not the fields of vLLM's API."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise InvalidValueError(
                f"the answer of {self.url} cannot be read: {error!r:.300}",
                legal="an answer of vLLM's OpenAI API",
                remedy="ask the server itself, without a proxy",
            ) from error

    def _request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON answer; raises InvalidValueError with what the server, or the network, says."""
        url, data = self.url.rstrip("/") + path, None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if key := next((os.environ[name] for name in KEYS if os.environ.get(name)), ""):
            headers["Authorization"] = f"Bearer {key}"
        is_near = urlsplit(url).hostname in LOOPBACK
        opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_near else []))
        try:
            with opener.open(urllib.request.Request(url, data, headers), timeout=self.timeout_s) as answer:
                return parse_object(answer.read(MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            said = error.read(500).decode("utf-8", "replace").strip()
            raise InvalidValueError(
                f"{url} answers {error.code}: {said or error.reason}",
                legal="an answer of vLLM's OpenAI API",
                remedy=_remedy(error.code, said),
            ) from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise InvalidValueError(
                f"no server of completions at {url}: {reason}",
                legal="the address of a running server",
                remedy="vllm serve CHECKPOINT --port 8000",
            ) from error


def _remedy(code: int, said: str) -> str:
    """Return what mends a server that rejects a request, if its answer shows that."""
    if code == 401:
        return f"export {KEYS[0]}=... with the server's key"
    if code >= 500:
        return "see the log of the server, which failed on this request"
    if "tokenizer" in said:
        return "start the server with a tokenizer, without --skip-tokenizer-init: its completions need one"
    return ""
