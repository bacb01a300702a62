"""`rlharness reproduce RUN --step K --interactive`, as it is typed: what is said, and that nobody stays behind."""

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.user_cache import cache_path
from tests.lab.bandit_runs import recorded_bandits
from tests.support.cli_commands import Done
from tests.support.suite_runs import HARNESS, PATIENCE_S, environment

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("own_cache")  # for the lines that are remembered


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, another whose advantages are normalised, and one that ends in step 3 by an error."""
    directory = tmp_path_factory.mktemp("runs")
    recorded_bandits(directory, a={}, b={"normalises": True}, broken={"breaks": 3})
    return directory


def stand(directory: Path, text: str, *words: str) -> Done:
    """Type these lines into a pipe."""
    done = subprocess.run(
        [*HARNESS, "reproduce", *words, "--interactive"],
        cwd=directory,
        env=environment(),
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_somebody_walks_through_a_step_and_back_and_looks_at_both_runs(runs: Path) -> None:
    lines = (
        "back\nlist\nnext\nback\nnext\nlist sync\nn adv\nback\nbreak weight\nc\nlist\nshow backward/weight [0:2]\n"
        "show backward/weight [62:]\nshow weight [64]\nshow names [0]\ncompare names\ncompare backward/weight\n"
        "compare backward/weight [60:]\nbreak wieght\nbreak optim\nclear opt\nc\nc\nb\n"
    )
    done = stand(runs, lines, "a", "--step", "3", "--against", "b", "--out", "walk")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    said = done.stdout
    assert said.startswith(
        "at the beginning of step 3\n  repeated from the beginning: steps 0 to 2 are reproduced, every bit\n"
        "(step 3, beginning) back\nthis is already the beginning of step 3\n"
        "(step 3, beginning) list\nnothing recorded so far\n(step 3, beginning) next\n"
        "  rollout       2 values: as recorded; 2 NOT as in the other run, first names\n"
        "before reward\n(step 3, before reward) back\n"
        "at the beginning of step 3\n(step 3, beginning) next\n"
        "  rollout       2 values: as recorded; 2 NOT as in the other run, first names\n"
        "before reward\n(step 3, before reward) list sync\nnothing of sync recorded so far\n"
        "(step 3, before reward) n adv\n"
    )
    assert "the slice [64] of a value of shape [64]\n  legal:  at most 1 index: -64 to 63\n  remedy: " in said
    assert "the slice [0] of names, which is a text\n" in said
    assert "DIFFERENT by an unknown amount: texts have no elements" in said
    assert "f32 [64] [60:], compared with b\n  DIFFERENT in 4 of 4 elements, by at most " in said
    assert "\n  the first, [60]: here " in said
    assert "\n'wieght' is neither a phase nor a value of this step\n" in said
    assert "stops after weight, before optimizer\n" in said
    assert "clear opt\nstops after weight\n" in said
    assert "(step 3, before advantage) back\nbefore reward\n  2 values reproduced, every bit\n" in said
    assert "after backward weight\n(step 3, after backward weight) list\n" in said
    assert "  = !  weight  f32 [64]\n" in said
    shown = said.split("[0:2]\nbackward weight  f32 [64] [0:2] [2]\n  min ")[1]
    compared = said.split("compare backward/weight\n")[1]
    first = shown.splitlines()[1].split()[0]
    assert "show backward/weight [62:]\nbackward weight  f32 [64] [62:] [2]\n  min " in said
    assert "\n  [62]  " in said.split("show backward/weight [62:]\n")[1].split("(step 3")[0]
    assert "\n  DIFFERENT in 64 of 64 elements, by at most " in compared
    assert f"  the first, [0]: here {first}, there " in compared
    assert "  its root digest is the recorded one, " in said
    assert "\n'b' is short for back and break\n" in said
    assert "rlharness: going back: repeating step 3 up to its beginning\n" in done.stderr
    assert "rlharness: going back: repeating step 3 up to its first 2 values\n" in done.stderr
    assert "rlharness: repeating b up to the end of step 3\n" in done.stderr
    assert {path.name for path in (runs / "walk").glob("run-*")} == {f"run-{number}" for number in range(1, 5)}


@pytest.mark.full
@pytest.mark.timeout(120)
def test_a_run_that_ends_in_its_step_is_walked_into_all_the_same(runs: Path) -> None:
    done = stand(runs, "c\nshow rewards\nback\nshow rewards [0]\n", "broken", "--step", "3", "--json")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    begun, ended, refused, back, shown = map(json.loads, done.stdout.splitlines())
    assert (begun["at"], ended["at"], back["at"], back["phase"]) == ("begin", "ended", "phase", "backward")
    assert ended["notes"][0] == "the run has ended within the step: the program ended with exit code 1"
    assert ended["notes"][-1] == "| ArithmeticError: the gradient is not liked"
    assert [visit["phase"] for visit in ended["visits"]] == ["rollout", "reward", "advantage", "backward"]
    assert {recorded_value["recorded"] for visit in ended["visits"] for recorded_value in visit["values"]} == {"absent"}
    assert refused["is_refused"]
    assert back["notes"] == ["4 values reproduced, every bit"]
    assert shown["shape"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "--step", "99"), "--step 99: a has none\n  legal:  0 to 5, the one after its last included"),
        pytest.param(("a",), "--interactive without --step", marks=pytest.mark.full),
        pytest.param(("tiny", "--step", "1"), "there is no run or bundle tiny", marks=pytest.mark.full),
        pytest.param(("a", "--step", "1", "--commands", "none.txt"), "--commands", marks=pytest.mark.full),
        pytest.param(
            ("a", "--step", "1", "--trace-ops", "--until", "x<1"),
            "--trace-ops, --until with --interactive",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ("a", "--step", "1", "--runs", "3"),
            "--runs is not an option of rlharness reproduce",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ("a", "--step", "1", "--set", "seed=3"),
            "--set seed: a different value makes a different run",
            marks=pytest.mark.full,
        ),
    ],
)
def test_what_nobody_can_stand_in_is_refused(runs: Path, words: tuple[str, ...], said: str) -> None:
    done = stand(runs, "", *words)
    assert done.code == ExitCode.USAGE_ERROR
    assert said in done.stderr


@contextmanager
def standing_before_a_gate(directory: Path, step: int) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A session at a step that cannot be passed before somebody opens the gate, a FIFO, to write."""
    gate = directory / "gate"
    gate.touch()
    recorded_bandits(directory, waiting={"waits_for": str(gate)})
    gate.unlink()
    os.mkfifo(gate)
    pipe = subprocess.PIPE
    words = [*HARNESS, "reproduce", "waiting", "--step", str(step), "--interactive"]
    with subprocess.Popen(
        words, cwd=directory, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        yield process, gate


@pytest.mark.full
@pytest.mark.timeout(120)
def test_ctrl_c_before_somebody_stands_in_the_step_leaves_nothing_behind(tmp_path: Path) -> None:
    with standing_before_a_gate(tmp_path, step=4) as (process, gate), gate.open("w"):  # step 3, on the way, reads it
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout, stderr) == (ExitCode.INTERRUPTED, "", "rlharness: interrupted by SIGINT\n")
    assert not list((tmp_path / ".rlharness" / "reproductions").iterdir())


@pytest.mark.full
@pytest.mark.timeout(120)
def test_ctrl_c_stops_what_goes_on_at_the_next_value_and_leaves_where_nothing_does(tmp_path: Path) -> None:
    with standing_before_a_gate(tmp_path, step=3) as (process, gate):
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write("continue\n")
        process.stdin.flush()
        with gate.open("w"):  # it is open once the step reads it
            process.send_signal(signal.SIGINT)
            assert (
                process.stderr.readline()
                == "rlharness: pausing at the next recorded value; press Ctrl-C again to leave\n"
            )
        lines = list(takewhile(lambda line: line != "before reward\n", process.stdout))
        assert "  rollout       2 values: as recorded\n" in lines
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == ExitCode.INTERRUPTED
    pid = json.loads(next((tmp_path / ".rlharness").glob("reproductions/*/run-1/processes/*.json")).read_text("utf-8"))[
        "pid"
    ]
    assert not Path("/proc", str(pid)).exists()


# ------------------------------------------------------------------------------------------------------- a terminal


class Terminal:
    """A person at a terminal."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.own, theirs = pty.openpty()
        env = {**environment(), "TERM": "xterm", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            [*HARNESS, "reproduce", *words, "--interactive"],
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


@pytest.mark.full
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
    terminal.wait_for("press Ctrl-C again to leave")
    terminal.wait_for("(step 3, before reward)")
    terminal.type("\x03")
    assert terminal.process.wait(PATIENCE_S) == ExitCode.INTERRUPTED


@pytest.mark.full
@pytest.mark.timeout(120)
def test_what_i_type_is_remembered_in_my_cache_and_not_through_a_link_of_the_checkout(
    runs: Path, tmp_path: Path, own_cache: Path
) -> None:
    mine = tmp_path / "bashrc"
    mine.write_text("mine")
    (runs / ".rlharness").mkdir(exist_ok=True)
    (runs / ".rlharness" / "interactive-history").symlink_to(mine)
    terminal = Terminal(runs, "a", "--step", "3")
    try:
        terminal.wait_for("(step 3, beginning)")
        terminal.type("next\r")
        terminal.wait_for("(step 3, before reward)")
    finally:
        terminal.close()
    assert mine.read_text() == "mine"
    assert "+next" in cache_path({"XDG_CACHE_HOME": str(own_cache)}, "interactive-history", runs).read_text()
