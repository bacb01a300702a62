"""Names that one holder at a time has, and that die with it."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from harness.process.claims import Claims, Holder, holder_of

_numbers = itertools.count()


def new_name() -> str:
    """A name that no other test, and no other run of the tests, uses."""
    return f"test-{os.getpid()}-{next(_numbers)}"


HOLDING = """
import sys
from harness.process.claims import Claims
claims = Claims()
print(claims.try_claim(sys.argv[1]), flush=True)
sys.stdin.read()
"""


def start_holder(name: str) -> tuple["subprocess.Popen[str]", bool]:
    """A process that tried to claim `name` and lives on; whether it got it."""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", HOLDING, name]
    holder = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    return holder, holder.stdout.readline() == "True\n"


def end(holder: "subprocess.Popen[str]", how: signal.Signals) -> None:
    holder.send_signal(how)
    holder.communicate(timeout=60)


def test_two_processes_never_hold_one_name() -> None:
    name = new_name()
    with Claims() as mine:
        holder, got_it = start_holder(name)
        assert got_it
        assert not mine.try_claim(name)
        assert holder_of(name) == Holder(holder.pid, os.geteuid())
        second, second_got_it = start_holder(name)
        assert not second_got_it
        end(second, signal.SIGTERM)
        assert not mine.try_claim(name)
        end(holder, signal.SIGTERM)
        assert mine.try_claim(name)
        third, third_got_it = start_holder(name)
        assert not third_got_it
        end(third, signal.SIGTERM)


def test_the_name_of_a_holder_killed_with_sigkill_is_free() -> None:
    name = new_name()
    holder, got_it = start_holder(name)
    assert got_it
    end(holder, signal.SIGKILL)
    assert holder_of(name) is None
    with Claims() as mine:
        assert mine.try_claim(name)


def test_a_child_does_not_keep_a_name_alive() -> None:
    name = new_name()
    with Claims() as mine:
        assert mine.try_claim(name)
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    with Claims() as other:
        assert other.try_claim(name)
    child.communicate(timeout=60)


def test_a_name_held_here_is_held_once_and_released_once() -> None:
    name = new_name()
    with Claims() as mine, Claims() as other:
        assert mine.try_claim(name)
        assert mine.try_claim(name)
        assert holder_of(name) == Holder(os.getpid(), os.geteuid())
        mine.release(name)
        assert other.try_claim(name)
        with pytest.raises(KeyError):
            mine.release(name)
        assert not mine.try_claim(name)


def test_asking_for_the_holder_again_and_again_neither_hangs_nor_disturbs_it() -> None:
    name = new_name()
    with Claims() as mine, Claims() as other:
        assert mine.try_claim(name)
        answers = {holder_of(name) for _ in range(200)}
        assert answers <= {Holder(os.getpid(), os.geteuid()), None}
        assert not other.try_claim(name)


def test_a_name_too_long_is_our_own_error() -> None:
    with Claims() as mine:
        longest = new_name().ljust(96, "x")
        assert mine.try_claim(longest)
        with pytest.raises(ValueError, match="at most 96"):
            mine.try_claim(longest + "x")


@pytest.mark.usefixtures("own_cache")
def test_a_name_that_a_run_of_this_user_holds_is_never_shared_however_often_it_was_asked() -> None:
    name = new_name()
    with Claims() as mine, Claims() as other:
        assert mine.try_claim(name)
        assert not any(other.try_claim_past(name) for _ in range(100)), "its queue of questions is full after 64"
        mine.release(name)
        assert other.try_claim_past(name), "as by try_claim"
        assert not mine.try_claim(name)


class Holders(RuleBasedStateMachine):
    """Three runs take and give back names in any order; a dictionary says who must have what."""

    RUNS = st.integers(0, 2)
    NAMES = st.sampled_from("ab")

    def __init__(self) -> None:
        super().__init__()
        self.prefix = new_name()
        self.runs = [Claims() for _ in range(3)]
        self.holders: dict[str, int] = {}

    @rule(run=RUNS, name=NAMES)
    def claim(self, run: int, name: str) -> None:
        got_it = self.runs[run].try_claim(self.prefix + name)
        assert got_it == (self.holders.setdefault(name, run) == run)

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        if name in self.holders:
            self.runs[self.holders.pop(name)].release(self.prefix + name)

    @rule(run=RUNS)
    def end(self, run: int) -> None:
        self.runs[run].close()
        self.holders = {name: holder for name, holder in self.holders.items() if holder != run}

    @invariant()
    def what_is_held_is_held_by_somebody(self) -> None:
        for name in "ab":
            assert (holder_of(self.prefix + name) is not None) == (name in self.holders)

    def teardown(self) -> None:
        for run in self.runs:
            run.close()


TestHolders = Holders.TestCase
TestHolders.settings = settings(derandomize=True, max_examples=30, stateful_step_count=20)
