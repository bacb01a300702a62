"""A completion is that of rlcore's own sampler, whoever else is served; a bad request or a lost client harms no other.

    requests ──ASGI, in this process──▶ Inference.app() ──▶ two published versions of one decoder

Level invariant: bits are compared.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
import torch
from safetensors.torch import save
from starlette.applications import Starlette

from harness.bits.tensor_digests import weights_digest
from rlcore.asynchronous.broadcast import WEIGHTS
from rlcore.asynchronous.directory import path_of, publish
from rlcore.asynchronous.infer import Inference
from rlcore.data.tasks import alphabet
from rlcore.determinism import at_level
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.seeds import key, permutation
from rlcore.types import Prompt, SampleRequest, SamplingParams
from tests.support.asynchronous_run import CONFIG

TOKENIZER = CharacterTokenizer(alphabet("reverse_text"))
Asked = Mapping[str, Any]
SHORT: Asked = {"model": "step_0", "prompt": [5, 6, 7], "seed": 11, "max_tokens": 4}


def decoder_of(version: int) -> Decoder:
    decoder = Decoder(CONFIG).initialise(version)
    with torch.no_grad():  # random weights alone would make all tokens almost as probable as each other
        for parameter in decoder.parameters():
            parameter.mul_(4.0 if parameter.dim() == 2 else 1.0)
    return decoder.requires_grad_(False)


@pytest.fixture(scope="module")
def broadcasts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("broadcasts")
    for version in (0, 1):
        publish(found, version, {WEIGHTS: save(dict(decoder_of(version).named_parameters()))})
    return found


@pytest.fixture(autouse=True, scope="module")
def level() -> Iterator[None]:
    with at_level("invariant", CONFIG, length=CONFIG.max_length):
        yield


@asynccontextmanager
async def serving(broadcasts: Path, concurrency: int = 4) -> AsyncIterator[tuple[httpx2.AsyncClient, Starlette]]:
    decoder = Decoder(CONFIG).initialise(9).requires_grad_(False)
    app = Inference(decoder, TOKENIZER, broadcasts, concurrency=concurrency, length=CONFIG.max_length).app()
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://me")
    async with app.router.lifespan_context(app), client:
        yield client, app


async def answer(client: httpx2.AsyncClient, asked: Asked | bytes) -> httpx2.Response:
    content = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    return await client.post("/v1/completions", content=content)


async def completion(client: httpx2.AsyncClient, asked: Asked) -> dict[str, Any]:
    """What came back of a completion that was answered, to the bit."""
    found = await answer(client, asked)
    assert found.status_code == 200, found.text
    (choice,) = found.json()["choices"]
    return {
        "model": found.json()["model"],
        "tokens": choice["token_ids"],
        "logprobs": [each.hex() for each in choice["logprobs"]["token_logprobs"]],
        "text": choice["text"],
        "stop": choice["stop_reason"],
        "fingerprint": found.json()["system_fingerprint"],
    }


async def wait_for(client: httpx2.AsyncClient, waiting: int, running: int) -> Any:
    """Wait until so many wait for their version, and so many are in the batch; return what /v1/models says then."""
    while True:
        found = (await client.get("/v1/models")).json()
        sums = [sum(each[name] for each in found["data"]) for name in ("waiting", "running")]
        if sums == [waiting, running]:
            return found
        await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end, which comes within a minute where all is well."""
    with torch.inference_mode():
        asyncio.run(asyncio.wait_for(work, 60))


def test_a_client_that_is_gone_before_it_has_asked_is_no_error(broadcasts: Path) -> None:
    """As when the orchestrator is ended: an exception would be written to the terminal, with its traceback."""

    async def work() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        sent = list[MutableMapping[str, Any]]()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "query_string": b""}
        async with serving(broadcasts) as (_, app):
            await app(scope, receive, send)
        assert sent[0]["status"] == 499

    run(work())


@cache
def expected_of(text: str) -> dict[str, Any]:
    asked = json.loads(text)
    stops = tuple(asked.get("stop", ()))
    params = SamplingParams(asked["max_tokens"], asked.get("temperature", 1.0), stop_strings=stops)
    request = SampleRequest(Prompt("", "", tuple(asked["prompt"])), 0, asked["seed"], params)
    with torch.inference_mode(False):
        decoder = decoder_of(int(asked["model"][-1]))
        (drawn,) = TorchSampler(decoder, TOKENIZER).sample([request])
    return {
        "model": asked["model"],
        "tokens": list(drawn.completion_tokens),
        "logprobs": [each.hex() for each in drawn.completion_logprobs],
        "text": drawn.completion_text,
        "stop": drawn.stop_reason.value,
        "fingerprint": weights_digest(dict(decoder.named_parameters())),
    }


def expected(asked: Asked) -> dict[str, Any]:
    """What the sampler of the synchronous page draws, alone."""
    return expected_of(json.dumps(asked))


def mixed(number: int) -> dict[str, Any]:
    """A request: of version 0 or 1, with a prompt and a length of its own; some greedy, some stopped by text."""
    prompt = [3 + (number * step) % 27 for step in range(1, 3 + number % 5)]
    asked = {"model": f"step_{number % 2}", "prompt": prompt, "seed": key("test", number), "max_tokens": 4 + number}
    more: dict[str, Any] = {"temperature": (1.0, 0.7, 0.0)[number % 3]} if number % 4 else {"stop": ["e", "ab"]}
    return asked | more


def long_request(num_tokens: int) -> dict[str, Any]:
    """A request whose completion nothing ends early."""
    every = ({**SHORT, "seed": seed, "max_tokens": num_tokens} for seed in count())
    return next(each for each in every if len(expected(each)["tokens"]) == num_tokens)


# ------------------------------------------------------------------------------------------------- what is answered


@pytest.mark.parametrize("concurrency", [1, 3, 64])
def test_a_completion_is_that_of_the_own_sampler_whoever_shares_the_batch(broadcasts: Path, concurrency: int) -> None:
    wanted = [mixed(number) for number in permutation(24, "arrival", concurrency)]
    assert {expected(each)["stop"] for each in wanted} == {"eos", "length", "stop_string"}, "or too little is tried"

    async def work() -> None:
        async with serving(broadcasts, concurrency) as (client, _):
            answers = await asyncio.gather(*(completion(client, each) for each in wanted))
            assert answers == [expected(each) for each in wanted]
            for asked in (mixed(0), mixed(1), mixed(0)):  # versions one after another, each in an empty batch
                assert await completion(client, asked) == expected(asked)

    run(work())


def test_more_than_there_are_rows_for_wait_and_all_are_answered(
    broadcasts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rows, decode = list[int](), Decoder.decode
    wanted = [{**SHORT, "seed": seed, "max_tokens": 6} for seed in range(60)]
    alone = [expected(each) for each in wanted[:3]]

    def counted(self: Decoder, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        num_rows.append(len(tokens))
        return decode(self, tokens, *rest)

    async def work() -> None:
        async with serving(broadcasts, 5) as (client, _):
            answers = await asyncio.gather(*(completion(client, each) for each in wanted))
        assert answers[:3] == alone and len({tuple(each["tokens"]) for each in answers}) > 50, "each has its own key"
        assert max(num_rows) == 5 and len(num_rows) < 120, "five together, while there are five"

    monkeypatch.setattr(Decoder, "decode", counted)
    run(work())


def test_a_request_is_admitted_between_two_tokens_of_another(broadcasts: Path) -> None:
    async def work() -> None:
        long, other = long_request(48), {**SHORT, "model": "step_1"}
        async with serving(broadcasts, 3) as (client, _):
            first = asyncio.create_task(completion(client, long))
            await wait_for(client, 0, 1)
            third = asyncio.create_task(completion(client, other))
            said = await wait_for(client, 1, 1)
            assert said["object"] == "list" and said["places"] == 3 and said["data"][0]["id"] == "step_0"
            assert await completion(client, SHORT) == expected(SHORT)
            assert not first.done() and not third.done(), "a short one ends first"
            assert list(await asyncio.gather(first, third)) == [expected(long), expected(other)]
            assert (await wait_for(client, 0, 0))["data"][0]["id"] == "step_1"

    run(work())


def test_what_has_waited_longest_decides_which_version_comes_next(broadcasts: Path) -> None:
    ended = list[int]()

    async def work() -> None:
        async def ask(version: int) -> None:
            await completion(client, {**SHORT, "model": f"step_{version}"})
            ended.append(version)

        async with serving(broadcasts) as (client, _):
            await asyncio.gather(*map(ask, (0, 1, 1, 0, 1)))

    run(work())
    assert ended == [0, 0, 1, 1, 1]


# --------------------------------------------------------------------------------------------------------- bad requests

BAD: Sequence[tuple[dict[str, Any] | bytes, str, str]] = (
    ({"top_p": 0.9}, "unknown key top_p", "All: model, echo, prompt, seed"),
    ({"prompt": [3, 30]}, "has token 30", "0 to 29"),
    ({"prompt": [-1, 4]}, "has token -1", "0 to 29"),
    ({"prompt": []}, "has no tokens", "at least one"),
    ({"prompt": [3] * 61}, "has 61 tokens and asks for 4 more", "up to 64 together"),
    ({"prompt": [3] * 500_000}, "has 500000 tokens", "up to 64 together"),
    ({"prompt": None}, "prompt is missing", ""),
    ({"prompt": "abc"}, "prompt is 'abc'", "a list"),
    ({"max_tokens": 0}, "max_tokens is 0", "or equal to 1"),
    ({"max_tokens": 10**30}, "asks for 1000000000000000000000000000000 more", "up to 64 together"),
    ({"max_tokens": None}, "max_tokens is missing", ""),
    ({"temperature": -1.0}, "temperature is -1.0", ""),
    ({"seed": "x"}, "seed is 'x'", "a valid integer"),
    ({"n": 2}, "n is 2", "1"),
    ({"model": "step_x"}, "model is 'step_x'", ""),
    ({"model": "gpt"}, "model is 'gpt'", "step_"),
    (b"", "Expecting value", ""),
    (b"[3, 4]", "a list, not a JSON object", ""),
    (b"\xff", "invalid start byte", ""),
    (b'{"prompt": ' * 5000, "nested more than", ""),
)


def test_a_bad_request_is_400_and_says_why_and_the_server_goes_on(broadcasts: Path) -> None:
    missing = [({name: SHORT[name] for name in SHORT if name != left}, left, "") for left in SHORT]

    async def work() -> None:
        async with serving(broadcasts) as (client, _):
            assert (await client.get("/health")).status_code == 200
            for asked, message, legal in [*BAD, *missing]:
                is_whole = isinstance(asked, bytes) or len(asked) > 1
                found = await answer(client, asked if is_whole else {**SHORT, **cast(Asked, asked)})
                error = found.json()["error"]
                assert found.status_code == 400 and message in error["message"] and legal in error["legal"], error
            assert await completion(client, SHORT) == expected(SHORT)
            await wait_for(client, 0, 0)

    run(work())


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": float("nan")},
        {"stop": [1]},
        {"max_tokens": float("inf")},
        {"prompt": "345"},
        {"prompt": [3.7]},
        {"model": "step_-1"},
    ],
    ids=str,
)
def test_a_value_of_another_kind_is_an_error_of_its_sender_alone(broadcasts: Path, change: dict[str, Any]) -> None:
    async def work() -> None:
        async with serving(broadcasts) as (client, _):
            found, _ = await asyncio.gather(answer(client, {**SHORT, **change}), completion(client, SHORT))
            assert found.status_code in (400, 404), found.text

    run(work())


def test_weights_that_are_not_there_are_404_and_the_others_are_answered(tmp_path: Path, broadcasts: Path) -> None:
    for version in (0, 1):
        publish(tmp_path, version, {WEIGHTS: save(dict(decoder_of(version).named_parameters()))})
    damaged = path_of(tmp_path, 1) / WEIGHTS
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")

    async def work() -> None:
        models = ("step_0", "step_7", "step_1", "step_0")
        async with serving(tmp_path) as (client, _):
            found = await asyncio.gather(*(answer(client, {**SHORT, "model": model}) for model in models))
            assert [each.status_code for each in found] == [200, 404, 404, 200]
            messages = [each.json()["error"]["message"] for each in found[1:3]]
            assert f"step_7/{WEIGHTS} cannot be read" in messages[0] and f"step_1/{WEIGHTS} is damaged" in messages[1]
            assert await completion(client, SHORT) == expected(SHORT)

    run(work())


# ------------------------------------------------------------------------------------------------ clients that hang up


def call(app: Starlette, asked: Asked) -> Callable[[], Coroutine[Any, Any, int]]:
    """Ask without a network; return how to hang up, which returns the status that was sent before or after it."""
    body, gone, statuses = [json.dumps(asked).encode()], asyncio.Event(), list[int]()

    async def receive() -> dict[str, Any]:
        if body:
            return {"type": "http.request", "body": body.pop()}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        statuses.append(message.get("status", 0))

    async def hang_up() -> int:
        gone.set()
        await running
        return statuses[0]

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}
    running = asyncio.ensure_future(app(scope, receive, send))
    return hang_up


def test_who_hangs_up_frees_the_row_and_the_others_go_on(broadcasts: Path) -> None:
    async def work() -> None:
        long, other = long_request(56), {**SHORT, "model": "step_1", "seed": 5}
        async with serving(broadcasts, 1) as (client, app):
            calls = [call(app, each) for each in (long, {**long, "max_tokens": 40}, other)]
            left = [asyncio.create_task(completion(client, each)) for each in (SHORT, other)]
            await wait_for(client, 2, 3)
            assert [await hang_up() for hang_up in reversed(calls)] == [499] * 3, "none was done"
            assert list(await asyncio.gather(*left)) == [expected(SHORT), expected(other)]
            await wait_for(client, 0, 0)

    run(work())


@pytest.mark.parametrize(("model", "status"), [("step_0", 200), ("step_7", 404)])
def test_a_client_may_hang_up_at_any_moment(broadcasts: Path, model: str, status: int) -> None:
    async def work() -> None:
        beside, statuses = long_request(12), set[int]()
        async with serving(broadcasts) as (client, app):
            for num_turns in range(20):
                other = asyncio.create_task(completion(client, beside))
                await wait_for(client, 0, 1)
                hang_up = call(app, {**beside, "model": model, "max_tokens": 6})
                for _ in range(num_turns):
                    await asyncio.sleep(0)
                statuses.add(await hang_up())
                assert await other == expected(beside), f"one beside it, after {num_turns} turns"
            await wait_for(client, 0, 0)
        assert statuses == {499, status}, "before and after the answer, or too little was tried"

    run(work())
