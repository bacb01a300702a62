"""The inference server with vLLM: the torch backend's answers to the bit, and requests whose clients hang up."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import psutil
import pytest
import torch
import yaml
from safetensors.torch import save

from rlcore.asynchronous.broadcast import WEIGHTS, to_files
from rlcore.asynchronous.directory import BATCHES, is_there, publish
from rlcore.asynchronous.infer import Backend, Inference, LocalBackend
from rlcore.errors import InvalidValueError
from rlcore.models.config import LoraConfig
from rlcore.models.decoder import Decoder, is_adapter
from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from tests.support.asynchronous_run import bits, make_model, write_files
from tests.support.parity import requests_of
from tests.support.samplers import TOKENIZER, decoder_of
from tests.support.vllm_engines import CONCURRENCY, need_vllm

if TYPE_CHECKING:
    from rlcore.asynchronous.vllm_backend import VllmBackend

need_vllm()
pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[3]
LENGTH = 96
Ask = Callable[..., Awaitable[httpx2.Response]]


def version(number: int) -> Decoder:
    """Return the decoder of a version."""
    decoder = decoder_of("qwen3", spread=6.0)
    with torch.no_grad():
        decoder.embedding.mul_(1 + 0.1 * number)
    return decoder.requires_grad_(False)


@pytest.fixture
def broadcasts(tmp_path: Path) -> Path:
    for number in range(2):
        publish(tmp_path, number, {WEIGHTS: save(dict(version(number).named_parameters()))})
    nan = {name: torch.full_like(each, torch.nan) for name, each in version(0).named_parameters()}
    publish(tmp_path, 2, {WEIGHTS: save(nan)})
    return tmp_path


@pytest.fixture(scope="module")
def started() -> Iterator["VllmBackend"]:
    from rlcore.samplers.vllm.versions import isolated

    with isolated():
        from rlcore.asynchronous.vllm_backend import VllmBackend
    found = VllmBackend(version(0), TOKENIZER, concurrency=CONCURRENCY, length=LENGTH, report=print)
    yield found
    found.engine.close()


@pytest.fixture
def backend(started: "VllmBackend") -> Iterator["VllmBackend"]:
    with following(STRATEGIES[0]), torch.inference_mode():
        yield started


def serve(
    broadcasts: Path,
    backend: Backend | None,
    use: Callable[[Inference, Ask], Awaitable[Any]],
    decoder: Decoder | None = None,
) -> Any:
    """Serve completions in this thread for as long as `use` runs; return its result."""

    async def served() -> Any:
        given, backends = (decoder or version(0), TOKENIZER, broadcasts), [backend] if backend else []
        inference = Inference(*given, concurrency=CONCURRENCY, length=LENGTH, backends=backends)
        app = inference.app()
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server") as client,
        ):
            return await use(inference, lambda asked: client.post("/v1/completions", json=asked))

    return asyncio.run(served())


def completions(step: int, **more: Any) -> list[dict[str, Any]]:
    """Return requests for a version: prompts that share a prefix, 20 tokens each."""
    return [
        {
            "model": f"step_{step}",
            "prompt": list(each.prompt.tokens),
            "seed": each.key,
            "max_tokens": 20,
            "temperature": 0.8,
            **more,
        }
        for each in requests_of()
    ]


ASKED = [
    *(one for pair in zip(completions(0), completions(1), strict=True) for one in pair),
    *completions(0, stop=["a", "e", "xy"]),
]
"""More than are decoded together, of versions in turn."""
LONG = completions(0)[2]
"""It does not end by itself."""


async def answers(_: Inference, ask: Ask) -> list[dict[str, Any]]:
    """Ask for all, a few moments apart -> what has to be equal of each answer."""

    async def one(number: int) -> dict[str, Any]:
        await asyncio.sleep(0.003 * number)
        answer = (await ask(ASKED[number])).json()
        return {key: value for key, value in answer.items() if key != "usage"}

    return await asyncio.gather(*map(one, range(len(ASKED))))


def test_answers_are_those_of_the_torch_backend_to_the_bit(broadcasts: Path, backend: "VllmBackend") -> None:
    expected = serve(broadcasts, None, answers)
    assert serve(broadcasts, backend, answers) == expected
    assert len({answer["system_fingerprint"] for answer in expected}) == 2
    assert {answer["choices"][0]["stop_reason"] for answer in expected} >= {"length", "stop_string"}


@pytest.mark.full
def test_adapters_over_one_base_are_those_of_the_torch_backend_to_the_bit(tmp_path: Path) -> None:
    from rlcore.samplers.vllm.versions import isolated

    with isolated():
        from rlcore.asynchronous.vllm_backend import VllmBackend
    lora = LoraConfig(4, 8.0, frozenset({"q_proj", "up_proj", "down_proj"}))
    for number in range(2):
        adapted = version(0).with_adapters(lora)
        with torch.no_grad():
            for name, each in adapted.named_parameters():
                if is_adapter(name):
                    each.normal_(std=0.3, generator=torch.Generator().manual_seed(number + 1))
        publish(tmp_path, number, to_files(adapted, {}))
    decoder = version(0).with_adapters(lora).requires_grad_(False)
    with following(STRATEGIES[0]), torch.inference_mode():
        backend = VllmBackend(decoder, TOKENIZER, concurrency=CONCURRENCY, length=LENGTH, report=print)
        try:
            found = serve(tmp_path, backend, answers, decoder)
        finally:
            backend.engine.close()
        assert found == serve(tmp_path, None, answers, version(0).with_adapters(lora).requires_grad_(False))
    assert len({answer["system_fingerprint"] for answer in found}) == 2


def test_at_level_off_some_bits_differ(broadcasts: Path, started: "VllmBackend") -> None:
    """The control."""
    with torch.inference_mode():
        found = serve(broadcasts, started, answers)
    with following(STRATEGIES[0]), torch.inference_mode():
        assert serve(broadcasts, None, answers) != found


def test_a_request_whose_client_hangs_up_is_forgotten(broadcasts: Path, backend: "VllmBackend") -> None:
    async def use(inference: Inference, ask: Ask) -> tuple[int, int, list[int]]:
        app, hung_up, sent = inference.app(), asyncio.Event(), list[Any]()
        body = json.dumps({**LONG, "max_tokens": 50}).encode()
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not parts:
                await hung_up.wait()
                return {"type": "http.disconnect"}
            return parts.pop()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message.get("status"))

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
        asking = asyncio.create_task(app(scope, receive, send))
        while not len(backend):
            await asyncio.sleep(0)
        running = len(backend)
        hung_up.set()
        await asking
        left = len(backend)
        others = [ask(each) for each in completions(0)[:2]]
        # Another version is loaded next, which the engine refuses while it holds a request.
        codes = [each.status_code for each in await asyncio.gather(*others, ask(ASKED[1]))]
        return running - left, sent[0], codes

    assert serve(broadcasts, backend, use) == (1, 499, [200, 200, 200])
    assert not len(backend)


def test_missing_weights_and_weights_that_are_nan_fail_their_own_requests(
    broadcasts: Path, backend: "VllmBackend"
) -> None:
    async def use(_: Inference, ask: Ask) -> list[httpx2.Response]:
        asked = [ASKED[0], {**ASKED[0], "model": "step_7"}, {**ASKED[0], "model": "step_2"}, ASKED[0], ASKED[1]]
        return [await ask(each) for each in asked]

    found = serve(broadcasts, backend, use)
    assert [each.status_code for each in found] == [200, 404, 500, 200, 200]
    assert found[3].json()["choices"] == found[0].json()["choices"]
    assert "log-probabilities differ" in found[2].json()["error"]["message"]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_failure_amid_completions_leaves_nothing(
    broadcasts: Path, backend: "VllmBackend", monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    failing = LocalBackend(version(0), TOKENIZER, concurrency=2) if is_local else backend
    step = failing.step

    def fail() -> Any:
        step()
        monkeypatch.undo()
        raise InvalidValueError("a fault")

    async def use(_: Inference, ask: Ask) -> list[httpx2.Response]:
        before = await ask(LONG)
        monkeypatch.setattr(failing, "step", fail)
        failed = await asyncio.gather(*map(ask, completions(0)[:3]))
        return [before, *failed, await ask(LONG)]

    found = serve(broadcasts, failing, use)
    assert [each.status_code for each in found] == [200, 500, 500, 500, 200]
    assert found[-1].json()["choices"] == found[0].json()["choices"]
    assert not len(failing)


@pytest.mark.full
def test_a_run_whose_engine_is_killed_has_the_bits_of_the_torch_backend(tmp_path: Path) -> None:
    """The server ends by a signal with its engine, so that both are started again."""
    model = make_model(tmp_path / "model")

    def complete(backend: str, *, is_killed: bool) -> dict[str, bytes]:
        files, run = write_files(tmp_path / backend, model, num_steps=6), tmp_path / backend / "run_default"
        settings = yaml.safe_load(files["infer"].read_text("utf-8"))
        files["infer"].write_text(yaml.safe_dump({**settings, "backend": backend}), "utf-8")
        options = [f"--{role}={file}" for role, file in files.items()]
        command = [sys.executable, "-m", "rlcore.commands", "grpo", *options]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
            while is_killed and running.poll() is None and not is_there(run / BATCHES, 2):
                time.sleep(0.05)
            for process in psutil.Process(running.pid).children(recursive=True) if is_killed else ():
                if process.name().startswith("VLLM"):
                    process.kill()
            _, said = running.communicate(timeout=600)
        assert running.returncode == 0, said
        assert ("was ended by SIGKILL: it is started again" in said) == is_killed, said
        return bits(run)

    assert complete("vllm", is_killed=True) == complete("torch", is_killed=False)
