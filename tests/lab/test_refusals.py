"""What a command of the lab refuses before it starts or writes anything: the words typed, and what must be said."""

import shlex
import sys
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.recording.run_spec import EntryCall
from tests.lab.chaos.faulty_scenarios import write_scenario
from tests.lab.fragile_entry import write_fragile
from tests.lab.scenario_texts import write_tiny
from tests.support.cli_commands import type_here
from tests.support.projects import Project
from tests.support.traces import steps_of, write

PYTHON = shlex.quote(sys.executable)
REFUSALS = (
    ("replay --runs 1 -- {python} train.py", "--runs 1 leaves nothing to compare with"),
    ("replay tiny --runs 1", "--runs 1 leaves nothing to compare with"),
    ("replay --trace-ops -- {python} train.py", "--trace-ops without --step"),
    ("replay -- frobnicate", "frobnicate cannot be started"),
    ("replay --against nowhere -- {python} train.py", "no trace in "),
    ("replay --metric loss -- {python} train.py", "--metric loss: "),
    ("replay --level invariant -- ls", "the level 'invariant' cannot be guaranteed for a program"),
    ("replay", "rlharness replay needs a scenario or a command"),
    ("replay tiny -- ls", "both the scenario tiny and a command are given"),
    ("replay --set a=1 -- ls", "--set without a scenario"),
    ("replay --sweep a=1 --size full -- ls", "--size, --sweep without a scenario"),
    ("replay tiny --sweep seed=1,2", "--sweep seed: it is part of the run identity"),
    ("train fragile --out t --until nan", "--until 'nan'"),
    ("train fragile --out t --break-on lose", "--break-on 'lose'"),
    ("replay --resume-at 4 -- {python} train.py", "--resume-command (missing)"),
    ("replay --resume-at 9,4 --resume-command 'python x' -- {python} train.py", "--resume-at 9,4"),
    ("""replay --resume-at 4 --resume-command "python 'x" -- {python} train.py""", "No closing quotation"),
    ("replay --resume-at 4 --resume-command 'python x' --runs 3 -- {python} train.py", "--runs with --resume-at"),
    ("replay --resume-at 4 --resume-command frobnicate -- {python} train.py", "frobnicate cannot be started"),
    ("trace --out t -- frobnicate", "frobnicate cannot be started"),
    ("trace --out t", "the command to record is missing"),
    ("trace --out t --sentinel 0 -- {python} train.py", "--sentinel"),
    ("train tinny --out t", "there is no scenario 'tinny'"),
    ("train tiny --out t --save-tensors x", "--save-tensors x"),
    ("train tiny --out scenarios", "scenarios is not empty"),
    ("reproduce whole --step 3 --set seed=2", "--set seed: a different value makes a different run"),
    ("reproduce whole --step 9", "a step that it has recorded: 0 to 4"),
    ("reproduce whole --step 3 --size full", "No such option '--size'"),
    ("reproduce whole --step 1 --interactive --commands no.txt", "--commands no.txt: No such file or directory"),
    ("chaos sound --factors loudness", "there is no factor 'loudness' here"),
    ("chaos sound --only threads=0", "--only threads=0"),
    ("chaos sound --only crash=1.typo", "crash=1.typo"),
    ("chaos sound --only runtime.world_size=abc", "--only runtime.world_size=abc"),
    ("chaos sound -- ls", "the scenario sound and a command"),
    ("chaos sound --vary G=1,2", "--vary and the scenario sound"),
    ("chaos sound --vary G=1,2 -- {python} {{G}}", "both the scenario sound"),
    ("chaos --count 3 --only threads=1 --vary G=1,2 -- {python} {{G}}", "--count, --only with --vary"),
    ("chaos --steps 3 -- ls", "--steps and a command"),
    ("chaos -- frobnicate", "frobnicate cannot be started"),
    ("chaos", "rlharness chaos needs a scenario or a command"),
    ("gate --accept --reason why", "--accept without goldens"),
    ("gate --golden g --accept", "--accept without a reason"),
    ("gate --golden g --accept --reason '  '", "--accept without a reason"),
    ("gate --golden g --reason why", "--reason without --accept"),
    ("gate --fail-on speed", "--fail-on 'speed'"),
    ("gate tiny -- ls", "both the scenario tiny and a command"),
    ("bisect sums", "the range to search is missing"),
    ("bisect sums --good HEAD", "the range to search is missing"),
    ("bisect sums --good HEAD --bad HEAD", "are one commit"),
    ("bisect sums --good nothing --bad HEAD", "nothing is not a commit here"),
    ("bisect sums --packages a==1..2 --bad HEAD", "--packages and --bad"),
    ("bisect sums --good HEAD --bad HEAD~1", "--good HEAD is not an ancestor of --bad HEAD~1"),
    ("bisect sums --good HEAD~1 --bad HEAD -- ls", "both the scenario sums and a command"),
    ("reproduce nowhere", "no trace in"),
    ("report nowhere", "no trace in"),
    ("report a notes.txt", "is a file"),
    ("report a --out notes.txt", "exists and is not a report"),
    ("report a --out whole", "is a directory"),
    ("report a --out notes.txt/x.html", "the report cannot be written to notes.txt/x.html: "),
    ("report nowhere --out none/x.html", "no trace in"),
    ("report", "Missing argument 'TRACE|RUN...'"),
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of two commits with scenarios, a trace, a recorded run, and a file of its user."""
    project = Project(tmp_path_factory.mktemp("refusals") / "project")
    project.commit("Another")
    write_tiny(project.directory)
    write_fragile(project.directory)
    write_scenario(project.directory, "sound")
    write(project.directory / "a", steps_of(3))
    write(project.directory / "whole", steps_of(5))
    EntryCall("tests.lab.fragile_entry:run", {"seed": 1}, ("output",)).write(project.directory / "whole")
    project.write("notes.txt", "mine")
    return project.directory


@pytest.mark.parametrize(("typed", "said"), REFUSALS)
def test_what_cannot_be_is_refused_and_changes_nothing(project: Path, typed: str, said: str) -> None:
    before = {path: path.is_file() and path.read_bytes() for path in project.rglob("*")}
    done = type_here(project, *shlex.split(typed.format(python=PYTHON)))
    assert (done.code, done.stdout) == (ExitCode.USAGE_ERROR, ""), done.stderr
    assert said in done.stderr and "\nerror: " in f"\n{done.stderr}", done.stderr
    assert {path: path.is_file() and path.read_bytes() for path in project.rglob("*")} == before
