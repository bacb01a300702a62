"""The orchestrator makes the same batches whoever answers and however often it is asked; what is wrong stops it.

    Orchestrator ◀──HTTP──▶ Server: answers follow from the request, late, with an error, or not at all
         └──batches──▶ train: publishes a version after each batch, without weights

All of them are tasks of one event loop; the server is a real one, whose connections are lost.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from rlcore.asynchronous.audit import audit
from rlcore.asynchronous.directory import (
    BATCH,
    BATCHES,
    BROADCASTS,
    METRICS,
    Ledger,
    ledger_of,
    publish,
    read,
    read_batch,
    read_batches,
    steps,
)
from rlcore.asynchronous.orchestrator import Orchestrator
from rlcore.asynchronous.settings import read_orch, task_section
from rlcore.config import read_config
from rlcore.data.rewards import Reward
from rlcore.data.tasks import Task, alphabet, make_task
from rlcore.errors import CheckpointError, InvalidValueError, PlacementError, RewardError, WeightSyncError, WorkerError
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.train import TrainState, requests
from tests.support.asynchronous_run import write_files


def read_ledgers(run: Path) -> list[Ledger]:
    return [*map(ledger_of, read_batches(run))]


TOKENIZER = CharacterTokenizer(alphabet("reverse_text"))
SMALL: Mapping[str, Any] = {
    "env": [{"id": "reverse-text", "args": {"num_prompts": 5, "num_heldout": 2}}],
    "batch_size": 6,
    "rollouts_per_example": 2,
    "sampling": {"max_tokens": 6},
    "num_steps": 4,
}
"""Three groups of two in a step, and five prompts in an epoch."""
Answer = Mapping[str, Any] | int | None
Behave = Callable[[dict[str, Any], int], Awaitable[Answer]]


def completion(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a sampler answers: tokens that follow from the key, the prompt and the version."""
    rng = random.Random(f"{asked['model']} {asked['prompt']} {asked['seed']}")
    tokens = [rng.randrange(4, 30) for _ in range(asked["max_tokens"])]
    choice = {
        "token_ids": tokens,
        "logprobs": {"token_logprobs": [-rng.random() for _ in tokens]},
        "text": TOKENIZER.decode(tokens),
        "stop_reason": "length",
    }
    digest = f"weights of {asked['model']}"
    return {"choices": [choice], "system_fingerprint": digest, "usage": {"seconds": 0.1, "places": 4}}


async def at_once(asked: dict[str, Any], attempt: int) -> Answer:
    return completion(asked)


class Server:
    """Answers requests as `behave(request, how often it came before)` says: a body, a status, or None, a lost line."""

    def __init__(self, behave: Behave = at_once) -> None:
        self.behave, self.asked, self.hung_up = behave, list[dict[str, Any]](), list[dict[str, Any]]()
        self.times = Counter[str]()

    async def start(self) -> str:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1")
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, OSError):  # of a client that is cancelled
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            assert head.startswith(b"POST /v1/completions ") and length
            asked = json.loads(await reader.readexactly(int(length[1])))
            self.asked.append(asked)
            name = json.dumps(asked)
            self.times[name] += 1
            gone = asyncio.create_task(reader.read())
            work = asyncio.ensure_future(self.behave(asked, self.times[name] - 1))
            await asyncio.wait((gone, work), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not work.done():
                self.hung_up.append(asked)
                work.cancel()
            elif (found := work.result()) is not None:
                error = {"error": {"message": "no such thing", "legal": "another"}}
                status, body = (found, json.dumps(error)) if isinstance(found, int) else (200, json.dumps(found))
                head = f"HTTP/1.1 {status} .\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
                writer.write(head + body.encode())


def publish_weights(run: Path, version: int) -> None:
    about = {"weights_digest": f"weights of step_{version}"}
    publish(run / BROADCASTS, version, {METRICS: json.dumps(about).encode()})


async def train(run: Path) -> None:
    """Publish weights after each batch, as a trainer does."""
    for version in range(1000):
        publish_weights(run, version)
        while version not in steps(run / BATCHES):
            await asyncio.sleep(0.002)


def orchestrator(run: Path, urls: Sequence[str] = (), task: Task | None = None, **settings: Any) -> Orchestrator:
    client = {"base_url": [*urls] or ["http://nobody/v1"], "timeout": settings.pop("timeout", 60.0)}
    teacher = settings.pop("teacher", None)
    files = write_files(run, run / "model", **{**SMALL, **settings, "client": client})
    section, _ = read_orch(files["orch"])
    built = [make_task(task_section(each, "env"), TOKENIZER, section.seed) for each in section.env]
    envs = section.eval.env if section.eval else ()
    evaluated = [make_task(task_section(each, "eval.env"), TOKENIZER, section.seed) for each in envs]
    return Orchestrator(
        section, run, [task] if task else built, TOKENIZER, said.append, evaluated=evaluated, teacher=teacher
    )


said: list[str] = []


def go(work: Coroutine[Any, Any, Any]) -> None:
    said.clear()
    asyncio.run(asyncio.wait_for(work, 60))


async def make(run: Path, server: Server | None = None, task: Task | None = None, **settings: Any) -> Server:
    """Make all batches of a run."""
    server = server or Server()
    url = await server.start()
    weights = asyncio.create_task(train(run))
    try:
        await orchestrator(run, [url], task, **settings).work()
    finally:
        weights.cancel()
        server.server.close()
    return server


async def interrupt(run: Path, behave: Behave, *, num_batches: int, after_s: float = 0.0, **settings: Any) -> None:
    """Make some batches of a run, and end it at some time after the last of them."""
    work = asyncio.create_task(make(run, Server(behave), **settings))
    while len(steps(run / BATCHES)) < num_batches:
        await asyncio.sleep(0.001)
    await asyncio.sleep(after_s)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def batches(run: Path) -> list[bytes]:
    return [read(run / BATCHES, step, BATCH) for step in steps(run / BATCHES)]


def late(seed: int, most_s: float = 0.02) -> Behave:
    """Answers each after a random time."""
    rng = random.Random(seed)

    async def behave(asked: dict[str, Any], attempt: int) -> Answer:
        await asyncio.sleep(rng.random() * most_s)
        return completion(asked)

    return behave


# ------------------------------------------------------------------------------------------------ plans and versions


def test_a_group_asks_for_what_the_synchronous_page_asks_for(tmp_path: Path) -> None:
    page = {
        "seed": 42,
        "task": {"name": "reverse_text", "num_prompts": 5, "num_heldout": 2},
        "sampling": {"max_tokens": 6},
        "algorithm": {"name": "grpo"},
        "training": {"num_steps": 4, "prompts_per_step": 3, "group_size": 2},
    }
    config = read_config(page)
    task = make_task(config.task, TOKENIZER, config.seed)
    own, twice = orchestrator(tmp_path), 0
    nothing = cast(Any, None)
    state = TrainState(config, "off", task, TOKENIZER, nothing, nothing, nothing, nothing)
    for step in range(40):
        wanted = requests(state, step)
        assert [each for place in range(3) for each in own.requests(3 * step + place, 0)] == wanted
        twice += len({each.prompt.id for each in wanted}) < 3
    assert twice > 2, "or no prompt comes twice in a step"


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_strict_step_waits_for_its_version_alone(tmp_path: Path, ahead: int) -> None:
    async def work() -> None:
        server = Server()
        making = orchestrator(tmp_path, [await server.start()], max_async_level=ahead, num_steps=6)
        work = asyncio.create_task(making.work())
        for newest in range(6 - ahead):
            publish_weights(tmp_path, newest)
            while len(server.asked) < 6 * (newest + ahead + 1) or len(batches(tmp_path)) <= newest + ahead:
                await asyncio.sleep(0.002)
            await asyncio.sleep(0.03)
            assert len(server.asked) == 6 * (newest + ahead + 1), "and begins no group of a later step"
        await work
        versions = [asked["model"] for asked in server.asked]
        assert Counter(versions) == Counter(f"step_{max(0, step - ahead)}" for step in range(6) for _ in range(6))
        server.server.close()

    go(work())
    for step, ledger in enumerate(read_ledgers(tmp_path)):
        assert ledger == [(3 * step + place, max(0, step - ahead), "trained") for place in range(3)]
        batch = read_batch(tmp_path, step)
        assert batch["needs_from"] == max(0, step + 1 - ahead) and batch["is_last"] == (step == 5)


def test_batches_depend_neither_on_speed_nor_on_restarts(tmp_path: Path) -> None:
    async def interrupted() -> None:
        for seed in range(6):
            num_batches, after_s = seed // 2, 0.01 + 0.02 * (seed % 2)
            await interrupt(tmp_path / "again", late(seed), num_batches=num_batches, after_s=after_s)
        await make(tmp_path / "again", Server(late(99)))

    go(make(tmp_path / "run"))
    go(make(tmp_path / "late", Server(late(1))))
    go(interrupted())
    assert batches(tmp_path / "run") == batches(tmp_path / "late") == batches(tmp_path / "again")
    assert len(batches(tmp_path / "run")) == 4 and audit(tmp_path / "again").is_right
    rows = [row for step in range(4) for row in read_batch(tmp_path / "run", step)["rows"]]
    assert len({(row["prompt"], *row["tokens"]) for row in rows}) == 24, "each request has its own key"


FREE: Mapping[str, Any] = {"mode": "free", "max_async_level": 1, "max_off_policy_steps": 1, "num_steps": 5}


def test_what_is_too_old_is_discarded_whole_and_its_requests_are_hung_up(tmp_path: Path) -> None:
    stuck = orchestrator(tmp_path).requests(0, 0)[1].key

    async def slow(asked: dict[str, Any], attempt: int) -> Answer:
        await asyncio.sleep(60 if asked["seed"] == stuck else 0)
        return completion(asked)

    server = Server(slow)
    go(make(tmp_path, server, **FREE))
    assert [(each["seed"], each["model"]) for each in server.hung_up] == [(stuck, "step_0")]
    ledgers = read_ledgers(tmp_path)
    assert [row for ledger in ledgers for row in ledger if row[2] != "trained"] == [(0, 0, "too old")]
    assert ledgers[2][-1] == (0, 0, "too old"), "at the first step that is more than one version ahead"
    assert all(row["group"] for step in range(5) for row in read_batch(tmp_path, step)["rows"])
    assert audit(tmp_path).is_right and audit(tmp_path).fates == {"trained": 15, "too old": 1}
    lags = [step - version for step, ledger in enumerate(ledgers) for _, version, fate in ledger if fate == "trained"]
    assert set(lags) == {0, 1}, "the newest are used"


def test_a_replay_follows_the_schedule_that_was_recorded(tmp_path: Path) -> None:
    stuck = {orchestrator(tmp_path).requests(group, 0)[0].key for group in (0, 7)}

    async def behave(asked: dict[str, Any], attempt: int) -> Answer:
        await asyncio.sleep(60 if asked["seed"] in stuck else 0.005 * (asked["seed"] % 7))
        return completion(asked)

    async def interrupted() -> None:
        await interrupt(tmp_path / "run", behave, num_batches=3, **free)
        await make(tmp_path / "run", Server(behave), **free)

    free: dict[str, Any] = {**FREE, "num_steps": 8}
    replay = {**free, "mode": "replay", "schedule": str(tmp_path / "run")}
    go(interrupted())
    found = audit(tmp_path / "run")
    assert found.is_right and found.fates == {"trained": 24, "too old": 2}
    for seed in (3, 4):  # the second one finds all of its batches there
        go(make(tmp_path / "again", Server(late(seed)), **replay))
        assert len(batches(tmp_path / "again")) == 8 and batches(tmp_path / "again") == batches(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"empty has no batches"):
        go(make(tmp_path / "more", **{**replay, "schedule": str(tmp_path / "empty")}))


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_replay_says_where_its_recording_ends_early(tmp_path: Path, is_whole: bool) -> None:
    async def work() -> None:
        if is_whole:
            await make(tmp_path / "run", num_steps=3)
        else:
            await interrupt(tmp_path / "run", late(1), num_batches=3, num_steps=6)
        await make(tmp_path / "again", mode="replay", schedule=str(tmp_path / "run"), num_steps=6)

    go(work())
    num_steps = len(batches(tmp_path / "run"))
    assert len(batches(tmp_path / "again")) == num_steps < 6
    line = f"{tmp_path / 'run'} was broken off after {num_steps} steps: this run ends there"
    assert [each for each in said if "broken off" in each] == ([] if is_whole else [line])


def test_the_share_of_discarded_groups_is_of_the_whole_run_after_a_restart_too(tmp_path: Path) -> None:
    stuck = orchestrator(tmp_path).requests(0, 0)[1].key

    async def slow(asked: dict[str, Any], attempt: int) -> Answer:
        await asyncio.sleep(60 if asked["seed"] == stuck else 0)
        return completion(asked)

    async def interrupted() -> None:
        await interrupt(tmp_path, slow, num_batches=3, **{**FREE, "num_steps": 20})
        await make(tmp_path, Server(slow), **{**FREE, "num_steps": 20})

    go(interrupted())
    lines = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text("utf-8").splitlines()]
    fates = audit(tmp_path).fates
    assert lines[-1]["discarded_share"] == fates["too old"] / sum(fates.values()) > 0


# ------------------------------------------------------------------------------------------------ servers that fail


@pytest.mark.parametrize("num_deaths", [1, 3])
def test_a_request_whose_line_is_lost_is_asked_again(tmp_path: Path, num_deaths: int) -> None:
    async def dies(asked: dict[str, Any], attempt: int) -> Answer:
        return None if asked["seed"] % 3 == 0 and attempt < num_deaths else completion(asked)

    go(make(tmp_path / "run"))
    server = Server(dies)
    go(make(tmp_path / "again", server))
    assert set(server.times.values()) == {1, num_deaths + 1}
    assert batches(tmp_path / "run") == batches(tmp_path / "again")


@pytest.mark.parametrize("samples", [(1,), (0, 1)])
def test_a_request_that_ends_the_server_alone_too_is_given_up(tmp_path: Path, samples: tuple[int, ...]) -> None:
    wanted = orchestrator(tmp_path).requests(4, 0)
    fatal = {wanted[sample].key for sample in samples}

    async def dies(asked: dict[str, Any], attempt: int) -> Answer:
        return None if asked["seed"] in fatal else completion(asked)

    server = Server(dies)
    go(make(tmp_path, server))
    assert Counter(server.times.values()) == {1: 24 - len(fatal), 4: len(fatal)}
    assert [line for line in said if "group 4: a request has ended http://127.0.0.1:" in line and "4 times" in line]
    ledgers = read_ledgers(tmp_path)
    assert [row for ledger in ledgers for row in ledger if row[2] != "trained"] == [(4, 0, "failed")]
    rows = read_batch(tmp_path, 1)["rows"]
    assert len(rows) == 6 - len(fatal) and sum(row["group"] == 4 for row in rows) == 2 - len(fatal)
    assert len(ledgers) == 4 and audit(tmp_path).is_right and audit(tmp_path).fates == {"trained": 11, "failed": 1}


def test_a_step_of_which_nothing_is_left_stops_the_run(tmp_path: Path) -> None:
    async def dies(asked: dict[str, Any], attempt: int) -> Answer:
        return None

    with pytest.raises(PlacementError, match="step 0: each of its requests has ended a server"):
        go(make(tmp_path, Server(dies)))


def test_a_server_that_is_not_there_is_waited_for_and_all_servers_are_used(tmp_path: Path) -> None:
    async def work() -> None:
        servers = [Server(), Server(), Server()]
        urls = [await each.start() for each in servers]
        servers[1].server.close()
        await servers[1].server.wait_closed()
        weights = asyncio.create_task(train(tmp_path))
        await orchestrator(tmp_path, urls).work()
        weights.cancel()
        assert [len(each.asked) for each in servers] == [8, 0, 16]
        for each in servers:
            each.server.close()

    go(work())
    go(make(tmp_path / "one"))
    assert batches(tmp_path) == batches(tmp_path / "one")


def test_an_answer_of_other_weights_stops_the_run(tmp_path: Path) -> None:
    async def stale(asked: dict[str, Any], attempt: int) -> Answer:
        found = completion(asked)
        return found | {"system_fingerprint": "weights of step_1"} if asked["model"] == "step_2" else found

    with pytest.raises(WeightSyncError, match="for version 2 with weights weights of step_1") as caught:
        go(make(tmp_path, Server(stale)))
    assert caught.value.legal.startswith("weights of step_2") and len(batches(tmp_path)) == 3


def test_an_error_of_the_server_stops_the_run_with_what_it_said(tmp_path: Path) -> None:
    async def fails(asked: dict[str, Any], attempt: int) -> Answer:
        return 400

    with pytest.raises(InvalidValueError, match="/v1 answers 400: no such thing") as caught:
        go(make(tmp_path, Server(fails)))
    assert caught.value.legal == "another" and not batches(tmp_path)


def test_a_server_that_takes_too_long_stops_the_run_and_no_group_fails_by_the_clock(tmp_path: Path) -> None:
    async def slow(asked: dict[str, Any], attempt: int) -> Answer:
        await asyncio.sleep(60 if asked["model"] == "step_1" else 0)
        return completion(asked)

    with pytest.raises(WorkerError, match=r"/v1 has not answered a request of group 6 within 1 s"):
        go(make(tmp_path, Server(slow), timeout=1.0))
    assert len(batches(tmp_path)) == 2 and audit(tmp_path).fates == {"trained": 6}


def test_a_reward_function_that_raises_is_named(tmp_path: Path) -> None:
    def mine(completions: list[str], **_: Any) -> list[float]:
        raise ZeroDivisionError("no characters")

    section, _ = read_orch(write_files(tmp_path, tmp_path / "model", **SMALL)["orch"])
    task = replace(
        make_task(task_section(section.env[0], "env.0"), TOKENIZER, section.seed), rewards=(Reward("mine", mine),)
    )
    with pytest.raises(RewardError, match="reward function mine raised ZeroDivisionError: no characters"):
        go(make(tmp_path, task=task))
    assert not batches(tmp_path)


def test_reward_functions_run_one_at_a_time_as_on_the_page(tmp_path: Path) -> None:
    """A user's function may keep what it likes between its lines, though groups end at the same time."""
    running, most = [0], [0]

    def mine(completions: list[str], **_: Any) -> list[float]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.01)
        running[0] -= 1
        return [float(len(text)) for text in completions]

    section, _ = read_orch(write_files(tmp_path, tmp_path / "model", **SMALL)["orch"])
    task = replace(
        make_task(task_section(section.env[0], "env.0"), TOKENIZER, section.seed), rewards=(Reward("mine", mine),)
    )
    go(make(tmp_path, task=task))
    assert most == [1] and len(batches(tmp_path)) == 4
