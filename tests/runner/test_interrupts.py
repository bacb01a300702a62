"""Real runs disturbed at random moments; `tests/benchmarks/interrupts.py` makes more than a thousand."""

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.child_env import ATTEMPT_MARKER
from tests.benchmarks.interrupts import (
    FULL_DISKS,
    INTERRUPTS,
    KILLS,
    KINDS,
    Setting,
    kinds_of,
    living,
    trial,
    victims,
    wrong_exit,
    wrong_in_events,
)

SEED = 20260301
MODES = ("file", "test", "interpreter")


def events_of(*outcomes: tuple[str, str], ends: bool = True) -> str:
    """Return the events of a run that planned a.py and b.py."""
    planned = {"event": "collection_finished", "units": [{"path": "a.py"}, {"path": "b.py"}]}
    ended = [
        {"event": "unit_finished", "result": {"unit": {"path": path}, "outcome": outcome}} for path, outcome in outcomes
    ]
    lines: list[dict[str, Any]] = [planned, *ended, *([{"event": "run_finished"}] if ends else [])]
    return "".join(json.dumps(line) + "\n" for line in lines)


PASSED = (("a.py", "passed"), ("b.py", "passed"))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (events_of(*PASSED), ""),
        (events_of(("a.py", "passed")), "2 units were planned, outcomes were {'a.py': 1}"),
        (events_of(*PASSED, ("b.py", "failed")), "2 units were planned, outcomes were {'a.py': 1, 'b.py': 2}"),
        (events_of(*PASSED, ends=False), "the events end with unit_finished"),
        ("", ""),
    ],
)
def test_a_unit_without_an_outcome_or_with_two_is_wrong(text: str, wrong: str) -> None:
    assert wrong_in_events(text) == wrong


def test_a_killed_runner_may_have_no_end_and_exit_code_0_requires_that_every_unit_passed() -> None:
    assert wrong_in_events(events_of(("a.py", "passed"), ends=False), was_killed=True) == ""
    assert wrong_in_events(events_of(("a.py", "passed"))[:-5], was_killed=True).startswith("the last line is not")
    assert "two outcomes: ['a.py']" in wrong_in_events(events_of(*PASSED, ("a.py", "passed")), was_killed=True)
    interrupted = events_of(("a.py", "passed"), ("b.py", "interrupted"))
    assert [wrong_exit(events_of(*PASSED), 0), wrong_exit(interrupted, 2)] == ["", ""]
    assert wrong_exit(interrupted, 0) == "exit code 0 with outcomes ['passed', 'interrupted']"


def test_the_counts_of_each_group_are_drawn() -> None:
    kinds = kinds_of(7, 5, 3, seed=1)
    assert [sum(kind in group for kind in kinds) for group in (INTERRUPTS, KILLS, FULL_DISKS)] == [7, 5, 3]


def test_a_trial_kills_no_runner_that_a_marked_test_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ATTEMPT_MARKER, "of-the-test")
    token = f"token-{os.getpid()}"
    environments = [{**os.environ, "RLH_TRIAL": token}, {**os.environ, "RLH_TRIAL": token, ATTEMPT_MARKER: "own"}]
    runner, leader = (subprocess.Popen(["sleep", "60"], env=each) for each in environments)
    try:
        while {runner.pid, leader.pid} - set(living(token)):  # the kernel shows an environment some time after exec
            time.sleep(0.01)
        assert victims(runner.pid, token, "SIGKILL a leader") == [leader.pid]
    finally:
        for process in (runner, leader):
            process.kill()
            process.wait()


def held(kinds: tuple[str, ...], setting: Setting, at_once: int) -> None:
    """Assert that one trial of each kind holds."""
    with ThreadPoolExecutor(at_once) as pool:
        trials = list(pool.map(lambda one: trial(one[0], one[1], setting), enumerate(kinds)))
    assert [one for one in trials if one.wrong] == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_a_run_is_interrupted_where_the_trial_itself_ignores_the_signal(name: str) -> None:
    before = signal.signal(signal.Signals[name], signal.SIG_IGN)
    try:
        one = trial(2, name, Setting(SEED, span_s=1.0))
    finally:
        signal.signal(signal.Signals[name], before)
    assert one.wrong == ""
    assert one.exit_code == ExitCode.INTERRUPTED or one.exit_code < 0


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_run_that_loses_a_leader_leaves_nothing_and_has_all_outcomes() -> None:
    one = trial(0, "SIGKILL a leader", Setting(SEED, span_s=1.0))  # well before the end
    assert (one.wrong, one.hit) == ("", True)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_run_whose_disk_fills_has_all_outcomes() -> None:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    one = trial(1, FULL_DISKS[0], Setting(SEED))
    assert one.wrong == ""


@pytest.mark.full
@pytest.mark.timeout(400)
def test_no_disturbance_leaves_a_process_or_loses_an_outcome(backend: str) -> None:
    held(KINDS, Setting(SEED, backend), at_once=2)


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("isolate", MODES)
def test_this_holds_in_every_isolation_mode(isolate: str) -> None:
    held(KINDS, Setting(SEED + 1, isolate=isolate), at_once=2)
