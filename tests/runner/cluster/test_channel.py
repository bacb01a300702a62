"""The connection between a run and its agents: who has no key is not heard, and no line counts twice."""

import asyncio
import json
import pickle
import secrets
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import NetworkError
from harness.machine.network.peer_messages import Seal
from harness.process.supervisor_client import ProcessEnd
from harness.runner.cluster import messages
from harness.runner.cluster.boot import check_listens
from harness.runner.cluster.channel import Channel, dial, greet, new_key

pytestmark = pytest.mark.full

END = ProcessEnd(None, 9, "cancelled", ("7 sleep",), (), 0.5)
SOME = (
    messages.Beat(),
    messages.Ended("a", END),
    messages.Ended("a", None, "no space left"),
    messages.FilePart("a", "ray_logs/x.log", 3, messages.to_data(b"\x00\xff")),
    messages.Start(
        *("a", ("python", "-m", "pytest"), "/s", {"TMPDIR": "/t"}, "/d", "/t", {"part.json": "{}"}, ("G-0",), 3, True),
        *(60.0, None, 10.0, '{"args": []}', (messages.HostGpus("10.0.0.1", ("G-0",)),)),
    ),
)


@pytest.mark.parametrize("message", SOME, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: messages.Message) -> None:
    assert messages.from_text(messages.to_text(message)) == message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("kmabc"), inner, max_size=3),
    )
)
def test_anything_else_is_refused(found: object) -> None:
    with pytest.raises(NetworkError, match="unknown"):
        messages.from_text(json.dumps(found))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Ended", {"marker": 7, "end": None, "error": ""}),
        ("Ended", {"marker": "a"}),
        ("Ended", {"marker": "a", "end": {**asdict(END), "reason": "forged"}, "error": ""}),
        ("Terminating", {"marker": "a", "reason": "\x1b]0;title\x07"}),
        ("Ended", {"marker": "a", "end": {"exit_code": "0"}, "error": ""}),
        ("Cancel", {"marker": "a", "more": 1}),
        ("Beats", {}),
        ("__class__", {}),
    ],
)
def test_fields_are_checked(kind: str, fields: dict[str, object]) -> None:
    text = json.dumps({"k": kind, "m": fields})
    if kind == "Cancel":  # an unknown field is dropped, as pydantic does
        assert messages.from_text(text) == messages.Cancel("a")
        return
    with pytest.raises(NetworkError):
        messages.from_text(text)


def test_a_pickle_is_not_opened() -> None:
    with pytest.raises(NetworkError):
        messages.from_text(pickle.dumps({"k": "Beat"}, protocol=0).decode("latin-1"))


def test_a_line_counts_once_and_in_one_connection() -> None:
    key, nonce = new_key(), secrets.token_hex(16)
    sender, receiver = Seal(key, nonce, is_listener=True), Seal(key, nonce, is_listener=False)
    line = sender.seal_text(messages.to_text(messages.Beat()))
    assert messages.from_text(receiver.open_text(line, "next")) == messages.Beat()
    for other in (receiver, Seal(key, nonce, is_listener=True), Seal(key, secrets.token_hex(16), is_listener=False)):
        with pytest.raises(NetworkError, match="another key"):
            other.open_text(line, "next")


async def connected(key: str, other: str, talk: Callable[[Channel, Channel], Awaitable[None]]) -> None:
    """Have two ends of one connection, with these keys, talk."""
    ends: asyncio.Queue[Channel] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ends.put(await greet(reader, writer, key, is_listener=True))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=messages.MAX_MESSAGE_BYTES)
    try:
        agent = await dial(("127.0.0.1", server.sockets[0].getsockname()[1]), other, 60)
        run = await ends.get()
        try:
            await talk(run, agent)
        finally:
            run.close()
            agent.close()
    finally:
        server.close()


def test_both_ends_hear_each_other_and_notice_the_end() -> None:
    async def talk(run: Channel, agent: Channel) -> None:
        for message in SOME:
            await run.send(message)
            await agent.send(message)
        for message in SOME:
            assert await agent.receive(60) == message
            assert await run.receive(60) == message
        agent.close()
        with pytest.raises(NetworkError, match="closed"):
            await run.receive(60)

    asyncio.run(connected(key := new_key(), key, talk))


def test_another_key_is_not_heard() -> None:
    async def talk(run: Channel, agent: Channel) -> None:
        await agent.send(messages.Beat())
        with pytest.raises(NetworkError, match="another key"):
            await run.receive(60)

    asyncio.run(connected(new_key(), new_key(), talk))


def test_silence_ends_a_connection() -> None:
    async def talk(run: Channel, agent: Channel) -> None:
        with pytest.raises(NetworkError, match="nothing was heard"):
            await run.receive(0.01)

    asyncio.run(connected(key := new_key(), key, talk))


def test_an_address_of_ray_at_which_nothing_listens_is_refused_at_once() -> None:
    """Ray itself would wait for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        asyncio.run(check_listens(f"127.0.0.1:{port}"))
    with pytest.raises(NetworkError, match=f"--cluster 127.0.0.1:{port}: .*refused|Connect call failed"):
        asyncio.run(check_listens(f"127.0.0.1:{port}"))
    asyncio.run(check_listens("auto"))
