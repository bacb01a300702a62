"""Connections of strangers to a run that listens for agents: few are held at a time, and agents dial again."""

import asyncio
from pathlib import Path

import pytest

from harness.core.invocation import Invocation
from harness.runner.cluster import channel
from harness.runner.cluster.channel import dial, new_key
from harness.runner.cluster.messages import Beat, Welcome
from harness.runner.cluster.nodes import Cluster
from harness.runner.options import RunOptions

pytestmark = pytest.mark.full

NUM_HELD = 3
LIMIT_S = 60.0


def test_few_strangers_are_held_and_an_agent_comes_in_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MAX_UNKNOWN", NUM_HELD)
    monkeypatch.setattr(channel, "DIAL_RETRY_S", 0.01)

    async def talk() -> tuple[list[bytes], object]:
        key = new_key()
        cluster = Cluster(RunOptions(Invocation(tmp_path, {}), tmp_path), key)
        port = await cluster.listen("127.0.0.1", 0)
        joining = asyncio.create_task(cluster.wait_for(1, LIMIT_S))
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(NUM_HELD + 4)]
        heard = [await reader.readline() for reader, _ in strangers]
        dialling = asyncio.create_task(dial(("127.0.0.1", port), key, LIMIT_S))
        done, _ = await asyncio.wait([dialling], timeout=0.1)
        assert not done, "no place is free"
        for _, writer in strangers:
            writer.close()
        agent = await dialling
        await agent.send(Beat())
        welcome = await agent.receive(LIMIT_S)
        joining.cancel()
        agent.close()
        await cluster.close()
        await asyncio.gather(joining, return_exceptions=True)
        return heard, welcome

    heard, welcome = asyncio.run(talk())
    assert sum(bool(line) for line in heard) == NUM_HELD
    assert isinstance(welcome, Welcome)
