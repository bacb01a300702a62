"""`rlharness replay RUN --step K --interactive`, as it is typed: what is said, and that nobody stays behind."""

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.exit_codes import ExitCode
from tests.lab.bandit_runs import recorded_bandits
from tests.lab.lab_run import Done
from tests.runner.whole_run import HARNESS, PATIENCE_S, environment

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, another whose advantages are normalised, and one that ends in step 3 by an error."""
    directory = tmp_path_factory.mktemp("runs")
    recorded_bandits(directory, a={}, b={"normalises": True}, broken={"breaks": 3})
    return directory


def stand(directory: Path, text: str, *words: str) -> Done:
    """Type these lines into a pipe."""
    done = subprocess.run(
        [*HARNESS, "replay", *words, "--interactive"],
        cwd=directory,
        env=environment(),
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.timeout(120)
def test_somebody_walks_through_a_step_and_back_and_looks_at_both_runs(runs: Path) -> None:
    lines = "next\nn\nback\nbreak weight\nc\nlist\nshow backward/weight [0:2]\ncompare backward/weight\nc\nc\nb\n"
    done = stand(runs, lines, "a", "--step", "3", "--against", "b", "--out", "walk")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    said = done.stdout
    assert said.startswith(
        "at the beginning of step 3\n  run again from the beginning: step 0 to 2 came out as recorded, every bit\n"
        "(step 3, beginning) next\n  rollout       2 values: as recorded; 2 NOT as in the other run, first names\n"
        "before reward\n"
    )
    assert "(step 3, before advantage) back\nbefore reward\n  2 values came out again as before, every bit\n" in said
    assert "behind backward weight\n(step 3, behind backward weight) list\n" in said
    assert "  = !  weight  f32 [64]\n" in said
    shown, compared = said.split("[0:2]\nbackward weight  f32 [64] [0:2] [2]\n  min ")[1].split("compare ")
    first = shown.splitlines()[1].split()[0]
    assert "\n  DIFFERENT in 64 of 64 elements, by at most " in compared
    assert f"  the first, [0]: here {first}, there " in compared
    assert "  its root is the recorded one, " in said
    assert "\n'b' is short for back and break\n" in said
    assert "rlharness: b is run again, up to the end of step 3\n" in done.stderr
    assert {path.name for path in (runs / "walk").glob("run-*")} == {"run-1", "run-2", "run-3"}


@pytest.mark.timeout(120)
def test_a_run_that_ends_in_its_step_is_walked_into_all_the_same(runs: Path) -> None:
    done = stand(runs, "c\nshow rewards\nback\nshow rewards [0]\n", "broken", "--step", "3", "--json")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    begun, ended, refused, back, shown = map(json.loads, done.stdout.splitlines())
    assert (begun["at"], ended["at"], back["at"], back["phase"]) == ("begin", "ended", "phase", "backward")
    assert ended["notes"][0] == "the run has ended within the step: the program ended with exit code 1"
    assert ended["notes"][-1] == "| ArithmeticError: the gradient is not liked"
    assert [visit["phase"] for visit in ended["visits"]] == ["rollout", "reward", "advantage", "backward"]
    assert {leaf["recorded"] for visit in ended["visits"] for leaf in visit["leaves"]} == {"absent"}
    assert refused["is_refused"]
    assert back["notes"] == ["4 values came out again as before, every bit"]
    assert shown["shape"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "--step", "99"), "--step 99\n  legal:  a step that"),
        (("a",), "--interactive without a recorded run and one of its steps"),
        (("tiny", "--step", "1"), "--interactive without a recorded run and one of its steps"),
        (("a", "--step", "1", "--commands", "none.txt"), "--commands"),
        (("a", "--step", "1", "--op", "--until", "x<1"), "--op, --until with --interactive"),
        (("a", "--step", "1", "--runs", "3"), "--runs with a recorded run"),
        (("a", "--step", "1", "--set", "seed=3"), "--set seed: with another value it would be another run"),
    ],
)
def test_what_nobody_can_stand_in_is_refused(runs: Path, words: tuple[str, ...], said: str) -> None:
    done = stand(runs, "", *words)
    assert done.code == ExitCode.USAGE_ERROR
    assert said in done.stderr


@pytest.mark.timeout(120)
def test_ctrl_c_stops_what_goes_on_at_the_next_value_and_leaves_where_nothing_does(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    recorded_bandits(tmp_path, waiting={"waits_for": str(gate)})
    gate.unlink()
    os.mkfifo(gate)
    words = [*HARNESS, "replay", "waiting", "--step", "3", "--interactive"]
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write("continue\n")
        process.stdin.flush()
        with gate.open("w"):  # it is open once the step reads it
            process.send_signal(signal.SIGINT)
            assert process.stderr.readline() == "rlharness: it stops at the next value; once more leaves\n"
        lines = iter(process.stdout.readline, "before reward\n")
        assert "  rollout       2 values: as recorded\n" in list(lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == ExitCode.INTERRUPTED
    pid = json.loads(next((tmp_path / ".rlharness").glob("replays/*/run-1/processes/*.json")).read_text("utf-8"))["pid"]
    assert not Path("/proc", str(pid)).exists()


# ------------------------------------------------------------------------------------------------------- a terminal


class Terminal:
    """A person at a terminal."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.own, theirs = pty.openpty()
        env = {**environment(), "TERM": "xterm", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            [*HARNESS, "replay", *words, "--interactive"],
            cwd=directory,
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = b""

    def type(self, text: str) -> None:
        os.write(self.own, text.encode())

    def wait_for(self, text: str) -> None:
        """Read until it is there; what comes before it is forgotten."""
        while text.encode() not in self.seen:
            ready, _, _ = select.select([self.own], [], [], PATIENCE_S)
            assert ready, self.seen
            piece = os.read(self.own, 1 << 16)
            self.seen += piece
            if b"\x1b[6n" in piece:  # it asks where the cursor is
                self.type("\x1b[1;1R")
        self.seen = self.seen.partition(text.encode())[2]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)
        os.close(self.own)


@pytest.fixture
def terminal(runs: Path) -> Iterator[Terminal]:
    opened = Terminal(runs, "a", "--step", "3")
    yield opened
    opened.close()


@pytest.mark.timeout(120)
def test_at_a_terminal_names_are_completed_and_ctrl_c_twice_leaves(terminal: Terminal) -> None:
    terminal.wait_for("(step 3, beginning)")
    terminal.type("next\r")
    terminal.wait_for("2 values: as recorded")
    terminal.wait_for("(step 3, before reward)")
    terminal.type("show pul\t\r")
    terminal.wait_for("rollout pulls  i64 [96]")
    terminal.wait_for("(step 3, before reward)")
    terminal.type("\x03")
    terminal.wait_for("once more leaves")
    terminal.wait_for("(step 3, before reward)")
    terminal.type("\x03")
    assert terminal.process.wait(PATIENCE_S) == ExitCode.INTERRUPTED
