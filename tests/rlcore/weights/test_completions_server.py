"""A server of completions that cannot be used is refused in its own words, with the remedy."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rlcore.errors import InvalidValueError
from rlcore.weights.completions_api import KEYS, CompletionsServer

MODELS = {"data": [{"id": name, "max_model_len": 64} for name in "ab"]}
CHOICE = {
    "prompt_logprobs": [None, {"2": {"logprob": -1.5}}],
    "token_ids": [3],
    "logprobs": {"token_logprobs": [-0.5]},
}


@contextmanager
def serving(content: Any, status: int = 200, key: str = "") -> Iterator[str]:
    """The address of a server that gives this answer to everybody who knows its key."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_allowed = not key or self.headers.get("Authorization") == f"Bearer {key}"
            raw = json.dumps(content if is_allowed else {"error": "Unauthorized"}).encode()
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status if is_allowed else 401)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_POST = do_GET

        def log_message(self, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "said"),
    [(400, "Unable to get tokenizer because `skip_tokenizer_init=True`"), (500, "EngineCore encountered an issue")],
)
def test_what_a_server_says_is_reported(status: int, said: str) -> None:
    with serving(said, status) as url, pytest.raises(InvalidValueError, match=f"answers {status}: .*{said}"):
        CompletionsServer(url).models()


def test_a_key_is_taken_from_the_environment_and_no_proxy_is_asked_for_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(MODELS, key="k") as url:
        with pytest.raises(InvalidValueError, match=r"answers 401.*Unauthorized") as caught:
            CompletionsServer(url).models()
        assert KEYS[0] in caught.value.remedy
        monkeypatch.setenv(KEYS[0], "k")
        assert CompletionsServer(url).models() == ["a", "b"]
    with pytest.raises(InvalidValueError, match="no server of completions at") as gone:
        CompletionsServer(url).models()
    assert "vllm serve" in gone.value.remedy
    with pytest.raises(InvalidValueError, match="no server of completions at localhost:8000"):
        CompletionsServer("localhost:8000").models()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_logprobs": None}, "cannot be read"),
        ({"logprobs": None}, "cannot be read"),
        ({"token_ids": None}, "cannot be read"),
        ({"logprobs": {"token_logprobs": [3.5]}}, "reports logits"),
    ],
)
def test_an_answer_without_log_probabilities_is_refused(change: dict[str, Any], message: str) -> None:
    with serving({"choices": [CHOICE]}) as url:
        assert CompletionsServer(url).score("a", (1, 2), 1).prompt == (-1.5,)
    with serving({"choices": [CHOICE | change]}) as url, pytest.raises(InvalidValueError, match=message) as caught:
        CompletionsServer(url).score("a", (1, 2), 1)
    assert caught.value.legal
