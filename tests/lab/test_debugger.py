"""`rlharness reproduce RUN --step K --interactive`, as it is typed: what is said, and that no process remains."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.user_cache import cache_path
from tests.lab.bandit_entry import recorded_bandits
from tests.lab.examples import PROGRAM
from tests.support.cli_commands import Done, type_command
from tests.support.suite_runs import HARNESS, PATIENCE_S, environment

pytest.importorskip("torch")
pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.timeout(240)]  # for the lines that are remembered
BROKEN, WHOLE = (sys.executable, "train.py", "1000"), (sys.executable, "train.py", "1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an entry, another whose advantages are normalised, and one that ends in step 3 by an error."""
    directory = tmp_path_factory.mktemp("runs")
    recorded_bandits(directory, a={}, b={"normalises": True}, broken={"breaks": 3})
    return directory


def debug(directory: Path, text: str, *words: str) -> Done:
    """Type these lines into a pipe."""
    head, *rest = " ".join(words).partition(" -- ")
    done = subprocess.run(
        [*HARNESS, "reproduce", *head.split(), "--interactive", *"".join(rest).split()],
        cwd=directory,
        env=environment(),
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.full
def test_a_command_stops_at_its_nan_and_the_operation_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    assert type_command(tmp_path, "trace", "--out", "broken", "--", *BROKEN).code == ExitCode.OK
    lines = (
        "b nan\nc\nlist\np loss\ntaken\np torch.rand(2)\nexit()\nb\noperation\nup\ncl nan\nc\nback\npdb\np step\nn\nc\n"
    )
    typed = f"{lines}step\np step\nc\nq\n"
    said = debug(tmp_path, typed, "broken", "--step", "4", "--trace-ops", "--", *BROKEN).stdout
    assert "steps 0 to 3 are reproduced, every bit\n> train.py(24)<module>()\n-> optimizer.step()\n" in said
    assert "1 value: as recorded; 1 with NaN, first loss\nafter loss loss\n> train.py(23)<module>()\n" in said
    assert "  =  loss  f32 []  nan\n" in said
    assert "p loss\ntensor(nan, grad_fn=<NegBackward0>)\n" in said
    assert "*** NameError: name 'taken' is not defined\n" in said
    assert "exit()\n*** SystemExit: None\n" in said, "an expression ends no program"
    assert "first NaN: made by forward aten.mul.Tensor (#" in said
    assert "), train.py:14 loss_of\n  it read f32 [16] with Inf; f32 [16]\n" in said
    assert "from an Inf that was made by forward aten.log.default (#" in said
    assert "*** Oldest frame\n" in said
    ends = said.split("at the end of step 4\n")
    assert ends[1].startswith("  its root digest is the recorded one, "), "what was drawn moves no bit"
    assert "before optimizer\n" in ends[1] and "values reproduced, every bit\n" in ends[1]
    assert "(Pdb) p step\n4\n" in said
    assert "at the beginning of step 5\n" in said
    assert "at the end of step 5\n  its root digest is the recorded one, " in said

    other = debug(tmp_path, "c\noperation\nq\n", "broken", "--step", "3", "--trace-ops", "--", *BROKEN).stdout
    assert "no operation of this step has made a NaN or an Inf\n" in other


@pytest.mark.full
def test_a_command_without_a_nan_goes_on_to_the_end_of_its_step_and_comes_back_from_pdb(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    for name, command in (("whole", WHOLE), ("broken", BROKEN)):
        assert type_command(tmp_path, "trace", "--out", name, "--", *command).code == ExitCode.OK
    lines = "b nan\nn\npdb\nn\n!loss = loss * 2\nc\np loss.item() > 0\np policy.weight[0].shape\nc\nc\ncompare loss\n"
    words = ("whole", "--step", "4", "--against", "broken", "--trust", "--", *WHOLE)
    said = debug(tmp_path, lines, *words).stdout
    assert "(Pdb) n\n> " in said and "train.py(24)<module>()\n-> optimizer.step()\n(Pdb) !loss = loss * 2\n" in said
    assert "(Pdb) c\n  loss          1 value: as recorded; 1 NOT as in the other run, first loss\nat a line\n" in said
    assert "p loss.item() > 0\nTrue\n" in said
    assert "p policy.weight[0].shape\ntorch.Size([8])\n" in said
    assert "at the end of step 4\n  its root digest is the recorded one, " in said, "the gradients were there"
    assert "*** step 4 has ended\n" in said
    assert "compare loss\nloss loss  f32 [], compared with broken\n  DIFFERENT in 1 of 1 element\n" in said
    assert "there nan (" in said


@pytest.mark.full
def test_the_phases_of_an_entry_are_compared_with_two_runs_there_and_back(runs: Path) -> None:
    lines = (
        "back\nlist\nnext\nback\nnext\nlist sync\nn adv\nn advantage\nback\nbreak weight\nc\nlist\n"
        "show backward/weight\ncompare names\ncompare backward/weight\nbreak wieght\n"
        "break optimizer\nclear optimizer\nshow rewards[:2]\nc\nc\n"
    )
    done = debug(runs, lines, "a", "--step", "3", "--against", "b", "--out", "walk")
    said = done.stdout
    assert "(step 3, beginning) back\nthis is already the beginning of step 3\n" in said
    assert "  rollout       2 values: as recorded; 2 NOT as in the other run, first names\nbefore reward\n" in said
    assert "list sync\nnothing of sync recorded so far\n" in said
    assert "*** 'adv' is not a phase\n  legal:  rollout, " in said
    assert "(step 3, before advantage) back\nbefore reward\n  2 values reproduced, every bit\n" in said
    assert "  = !  weight  f32 [64]\n" in said
    shown, compared = (said.split(f"{word} backward/weight\n")[1] for word in ("show", "compare"))
    first = shown.splitlines()[2].split()[0]
    assert shown.startswith("backward weight  f32 [64]\n  min ")
    assert "\n  DIFFERENT in 64 of 64 elements, by at most " in compared
    assert f"  the first, [0]: here {first}, there " in compared
    assert "*** 'wieght' is neither a phase nor a value of this step\n" in said
    assert "clear optimizer\nstops after weight\n" in said
    assert "rewards[:2]  f64 [2]\n  min " in said
    assert "rlharness: going back: repeating step 3 up to its first 2 values\n" in done.stderr
    assert "rlharness: repeating b up to the end of step 3\n" in done.stderr
    assert {path.name for path in (runs / "walk").glob("run-*")} == {f"run-{number}" for number in range(1, 5)}


@pytest.mark.full
def test_an_error_within_the_step_pauses_in_its_frames(runs: Path) -> None:
    done = debug(runs, "c\np step, gradient.shape\nc\nback\n", "broken", "--step", "3", "--json")
    begun, ended, shown, refused, back = (json.loads(line)["lines"] for line in done.stdout.splitlines())
    assert (begun[0], back[:2]) == (
        "at the beginning of step 3",
        ["before backward", "  4 values reproduced, every bit"],
    )
    assert [line.split()[0] for line in ended[:4]] == ["rollout", "reward", "advantage", "backward"]
    assert ended[4:6] == [
        "an error has ended step 3",
        "  the program has raised ArithmeticError: the gradient is not liked",
    ]
    assert shown == ["(3, torch.Size([64]))"]
    assert refused[0] == "*** step 3 has ended"


def test_a_step_that_a_run_has_not_is_refused(runs: Path) -> None:
    done = type_command(runs, "reproduce", "a", "--step", "99", "--interactive")
    said = "--step 99: a has none\n  legal:  0 to 5, the one after its last included"
    assert (done.code, said in done.stderr) == (ExitCode.USAGE_ERROR, True), done.stderr


@contextmanager
def debugging_before_a_gate(directory: Path, step: int) -> Iterator[tuple[subprocess.Popen[str], Path]]:
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
def test_ctrl_c_before_the_step_is_reached_leaves_nothing_behind(tmp_path: Path) -> None:
    with debugging_before_a_gate(tmp_path, step=4) as (process, gate), gate.open("w"):  # step 3, on the way, reads it
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stdout, stderr) == (ExitCode.INTERRUPTED, "", "rlharness: interrupted by SIGINT\n")
    assert not list((tmp_path / ".rlharness" / "reproductions").iterdir())


@pytest.mark.full
def test_ctrl_c_pauses_at_the_next_value_and_leaves_where_nothing_runs(tmp_path: Path) -> None:
    with debugging_before_a_gate(tmp_path, step=3) as (process, gate):
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write("continue\n")
        process.stdin.flush()
        with gate.open("w"):  # it is open once the step reads it
            process.send_signal(signal.SIGINT)
            assert "pausing at the next recorded value; press Ctrl-C again to leave\n" in process.stderr.readline()
        lines = list(takewhile(lambda line: line != "before reward\n", process.stdout))
        assert "  rollout       2 values: as recorded\n" in lines
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == ExitCode.INTERRUPTED
    (report,) = (tmp_path / ".rlharness").glob("reproductions/*/run-1/processes/*.json")
    assert not Path("/proc", str(json.loads(report.read_text("utf-8"))["pid"])).exists()


class Terminal:
    """A person at a terminal."""

    def __init__(self, directory: Path, *words: str) -> None:
        self.own, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*HARNESS, "reproduce", *words, "--interactive"],
            cwd=directory,
            env={**environment(), "TERM": "xterm", "NO_COLOR": "1"},
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


@pytest.mark.full
def test_at_a_terminal_names_are_completed_lines_remembered_and_ctrl_c_twice_leaves(
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
        terminal.wait_for("2 values: as recorded")
        terminal.wait_for("(step 3, before reward)")
        terminal.type("show pul\t\r")
        terminal.wait_for("rollout pulls  i64 [96]")
        terminal.wait_for("(step 3, before reward)")
        terminal.type("pdb\r")
        terminal.wait_for("(Pdb)")
        terminal.type("n\r")
        terminal.wait_for("-> advantages = rewards - rewards.mean()")
        terminal.type("c\r")
        terminal.wait_for("(step 3, at a line)")
        terminal.type("\x03")
        terminal.wait_for("press Ctrl-C again to leave")
        terminal.wait_for("(step 3, at a line)")
        terminal.type("\x03")
        assert terminal.process.wait(PATIENCE_S) == ExitCode.INTERRUPTED
    finally:
        terminal.close()
    assert mine.read_text() == "mine", "a link of the checkout is not written through"
    assert "+next" in cache_path({"XDG_CACHE_HOME": str(own_cache)}, "interactive-history", runs).read_text()
