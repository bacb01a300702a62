"""Delays move in which order calls answer, and nothing else."""

import asyncio
import inspect
import selectors
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.bits.errors import UsageError
from harness.recording.latency import Latency, delay_s, delayed

TOOLS = "tools_of_a_test"


@pytest.fixture
def tools() -> Iterator[ModuleType]:
    """A module with a function of each kind."""
    module = ModuleType(TOOLS)

    def look_up(word: str, times: int = 1) -> str:
        return word * times

    async def ask(word: str) -> str:
        return word

    module.look_up, module.ask, module.TABLE = look_up, ask, {}  # type: ignore[attr-defined]
    sys.modules[TOOLS] = module
    yield module
    del sys.modules[TOOLS]


class Waiting(asyncio.SelectorEventLoop):
    """A loop whose clock moves by what is waited for, and a nanosecond whenever it is read: no machine is too busy."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(Selector(self))

    def time(self) -> float:
        self._now_s += 1e-9
        return self._now_s

    def wait(self, seconds: float) -> None:
        self._now_s += seconds


class Selector(selectors.DefaultSelector):
    """Looks for what is there already, and lets the loop's own time pass."""

    def __init__(self, loop: Waiting) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.wait(timeout or 0.0)
        return super().select(0)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "delayed"


def answers(tools: ModuleType, words: str) -> str:
    """The letters in the order in which they are answered, asked for all at once."""
    told: list[str] = []

    async def asked(word: str) -> None:
        told.append(await tools.ask(word))

    async def all_asked() -> None:
        await asyncio.gather(*map(asked, words))

    with asyncio.Runner(loop_factory=Waiting) as runner:
        runner.run(all_asked())
    return "".join(told)


def test_answers_come_in_another_order_which_follows_from_the_seed(tools: ModuleType, mark: Path) -> None:
    honest = vars(tools)["ask"]
    assert answers(tools, "abcdefgh") == "abcdefgh"
    orders = []
    for seed in (1, 1, 2):
        vars(tools)["ask"] = honest
        Latency(seed, [f"{TOOLS}:ask"], str(mark))
        orders.append(answers(tools, "abcdefgh"))
    key = f"1 {TOOLS}:ask"
    assert orders[0] == orders[1] == "".join(sorted("abcdefgh", key=lambda word: delay_s(key, "abcdefgh".index(word))))
    assert orders[0] not in ("abcdefgh", orders[2])


def test_what_a_function_gives_and_takes_stays(tools: ModuleType, mark: Path) -> None:
    Latency(1, [f"{TOOLS}:look_up", f"{TOOLS}:ask"], str(mark))
    assert tools.look_up("a", times=2) == "aa"
    assert asyncio.run(tools.ask("a")) == "a"
    assert (tools.look_up.__name__, inspect.iscoroutinefunction(tools.ask)) == ("look_up", True)


def test_each_call_waits_as_its_number_says_and_the_first_that_waits_leaves_a_mark(
    mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("harness.recording.latency.sleep", waited.append)
    function, marks = delayed(str, "ask", mark), []
    for number in range(20):
        assert function(number) == str(number)
        marks.append(mark.exists())
    assert waited == [delay_s("ask", number) for number in range(20)]
    assert marks == [any(waited[: number + 1]) for number in range(20)]
    assert not marks[0], "this key's first call does not wait"


@pytest.mark.parametrize(
    ("name", "what", "legal"),
    [
        ("no_such_tools:ask", "there is no module no_such_tools", "can be imported"),
        (f"{TOOLS}:asks", f"{TOOLS} has no function asks", "look_up, ask"),
        (f"{TOOLS}:TABLE", f"{TOOLS} has no function TABLE", "look_up, ask"),
    ],
)
def test_what_is_no_function_is_refused(tools: ModuleType, name: str, what: str, legal: str) -> None:
    with pytest.raises(UsageError, match=what) as refused:
        Latency(1, [name], "")
    assert legal in refused.value.legal
