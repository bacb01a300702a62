"""A server's log-probabilities beside a checkpoint's: a real HTTP server around a decoder answers as vLLM does."""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.errors import CheckpointError, InvalidValueError
from rlcore.models.checkpoints import save
from rlcore.models.decoder import Decoder
from rlcore.weights.canary import policy_logprobs
from rlcore.weights.completions_api import CompletionsServer
from rlcore.weights.served_checkpoint import (
    served_checkpoint,
)
from tests.rlcore.weights.targets import CONFIG, policy

Change = Callable[[dict[str, Any]], Any]


@dataclass
class Served:
    """What a server holds."""

    decoder: Decoder
    decoding: Decoder | None = None
    """Decoder of tokens after a prompt, where that is another one: it has keys of older weights."""
    models: tuple[str, ...] = ("tiny",)
    change: Change = lambda answer: answer
    """Changes each completion."""
    key: str = ""
    fails: tuple[int, str] | None = None
    """Status and text of every answer."""
    asked: list[dict[str, Any]] = field(default_factory=list)

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer as vLLM does: greedy tokens, and log-probabilities of the prompt or of them."""
        self.asked.append(body)
        prompt, decoder = list(body["prompt"]), self.decoding or self.decoder
        tokens = list(prompt)
        with torch.no_grad():
            for _ in range(body["max_tokens"]):
                tokens.append(int(decoder(torch.tensor([tokens]))[0, -1].argmax()))
        decoded = policy_logprobs(decoder, torch.tensor(tokens))[len(prompt) - 1 :].tolist()
        choice: dict[str, Any] = {"token_ids": tokens[len(prompt) :], "logprobs": {"token_logprobs": decoded}}
        if "prompt_logprobs" in body:
            scored = policy_logprobs(self.decoder, torch.tensor(prompt)).tolist()
            pairs = zip(prompt[1:], scored, strict=True)
            choice["prompt_logprobs"] = [None, *({str(token): {"logprob": value}} for token, value in pairs)]
        return {"choices": [self.change(choice)]}


@contextmanager
def serving(served: Served) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({"data": [{"id": name, "max_model_len": CONFIG.max_length} for name in served.models]})

        def do_POST(self) -> None:
            self.reply(served.completion(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def reply(self, content: Any) -> None:
            is_allowed = not served.key or self.headers.get("Authorization") == f"Bearer {served.key}"
            code, content = served.fails if served.fails else (200, content)
            raw = json.dumps(content).encode() if is_allowed else b'{"error": "Unauthorized"}'
            self.send_response(code if is_allowed else 401)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

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


def spread(seed: int) -> Decoder:
    """Return a decoder whose log-probabilities depend on its weights."""
    decoder = policy(seed=seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return decoder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    save(spread(1), directory)
    return directory


def test_the_right_weights_are_near_and_a_shuffled_layer_is_far(checkpoint: Path) -> None:
    served = Served(spread(1))
    with serving(served) as url:
        found = served_checkpoint(checkpoint, url)
    assert (found["model"], found["num_tokens"]) == ("tiny", 4 * (64 - 8 - 1 + 4))
    assert max(found["prompt"], found["decoded"]) < 1e-6 < found["rounding"]
    assert set(found["shuffled"]) == {"layer 0", "layer 1"}
    assert min(found["shuffled"].values()) > 4 * found["rounding"]
    assert {len(body["prompt"]) for body in served.asked} == {56}
    assert all(isinstance(token, int) for body in served.asked for token in body["prompt"]), "no tokenizer is needed"


def test_other_weights_and_stale_keys_are_far(checkpoint: Path) -> None:
    with serving(Served(spread(2))) as url:
        other = served_checkpoint(checkpoint, url)
    assert other["prompt"] > max(other["shuffled"].values()) / 2
    with serving(Served(spread(1), decoding=spread(2))) as url:
        stale = served_checkpoint(checkpoint, url)
    assert stale["prompt"] < 1e-6
    assert stale["decoded"] > 0.1


def without(name: str) -> Change:
    return lambda answer: {key: value for key, value in answer.items() if key != name}


def logits(answer: dict[str, Any]) -> dict[str, Any]:
    return answer | {"logprobs": {"token_logprobs": [3.5] * len(answer["token_ids"])}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("prompt_logprobs"), "has no prompt_logprobs"),
        (without("logprobs"), "has no token_ids or logprobs"),
        (without("token_ids"), "has no token_ids or logprobs"),
        (logits, "reports logits"),
        (lambda answer: answer | {"token_ids": [999] * len(answer["token_ids"])}, "the server decoded token 999"),
    ],
)
def test_a_server_without_logprobs_is_reported(checkpoint: Path, change: Change, message: str) -> None:
    with serving(Served(spread(1), change=change)) as url, pytest.raises(InvalidValueError, match=message) as caught:
        served_checkpoint(checkpoint, url)
    assert caught.value.legal


def test_a_wrong_model_name_is_reported_with_the_names_that_are_served() -> None:
    with serving(Served(spread(1), models=("a", "b"))) as url:
        assert CompletionsServer(url).model("b") == ("b", 64)
        for name, message in (("c", "model 'c'"), ("", "2 models and no --model")):
            with pytest.raises(InvalidValueError, match=message) as caught:
                CompletionsServer(url).model(name)
            assert caught.value.legal == "a, b"


def test_a_key_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with serving(Served(spread(1), key="k")) as url:
        with pytest.raises(InvalidValueError, match=r"answers 401.*Unauthorized") as caught:
            CompletionsServer(url).model()
        assert "VLLM_API_KEY" in caught.value.remedy
        monkeypatch.setenv("VLLM_API_KEY", "k")
        assert CompletionsServer(url).model()[0] == "tiny"


def test_a_server_without_a_tokenizer_is_reported_with_its_own_words() -> None:
    said = "Unable to get tokenizer because `skip_tokenizer_init=True`"
    match = r"answers 400: .*Unable to get tokenizer"
    with serving(Served(spread(1), fails=(400, said))) as url, pytest.raises(InvalidValueError, match=match) as caught:
        CompletionsServer(url).model()
    assert "without --skip-tokenizer-init" in caught.value.remedy


def test_no_server_and_no_address_are_reported(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy is not asked for an address of this machine
    with serving(Served(spread(1))) as url:
        assert CompletionsServer(url).model()[0] == "tiny"
    with pytest.raises(InvalidValueError, match="no server of completions at") as caught:
        served_checkpoint(checkpoint, url)
    assert "vllm serve" in caught.value.remedy
    with pytest.raises(InvalidValueError, match="server 'localhost:8000'"):
        CompletionsServer("localhost:8000")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        served_checkpoint(checkpoint / "nothing", url)  # before the server is asked, which is not there


@pytest.mark.full
def test_the_program_prints_one_line(checkpoint: Path) -> None:
    def lines(url: str) -> dict[str, Any]:
        words = [sys.executable, "-m", "rlcore.weights.served_checkpoint", str(checkpoint), url]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "http_proxy": ""})
        (line,) = done.stdout.splitlines()
        return dict(json.loads(line))

    with serving(Served(spread(1))) as url:
        assert math.isclose(lines(url)["prompt"], 0.0, abs_tol=1e-6)
    assert "no server" in lines(url)["what"]
