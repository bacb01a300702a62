"""What `rlharness bisect` prints: whole against a golden, and as JSON."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.bisect.bisection import Bisection, Criterion, Outcome, Probe
from harness.lab.experiment.worktrees import Commit
from harness.render.bisect import bisection_json, bisection_text
from harness.trace.diff import diff
from tests.support.traces import flip_bit, steps_of, trace

DIRECTORY = Path("bisections/1")


def probe(letter: str, subject: str, outcome: Outcome, reason: str) -> Probe:
    directory = DIRECTORY / (7 * letter) / "run-1"
    return Probe(40 * letter, f"{7 * letter} {subject}", outcome, reason, directory)


GOOD = probe("a", "The first", Outcome.GOOD, "every bit is the same")
PARENT = probe("b", "A comment", Outcome.GOOD, "every bit is the same")
BROKEN = probe("c", "Half a change", Outcome.SKIP, "the program ended with exit code 1")
FOUND = probe(
    "d", "The other half\x1b[31m", Outcome.BAD, "bits differ from step 1 on, first in backward layers.0.weight"
)
BAD = probe("e", "The last", Outcome.BAD, "bits differ from step 1 on, first in backward layers.0.weight")


@pytest.fixture
def found(tmp_path: Path) -> Bisection:
    a = trace(tmp_path / "a", steps_of(3))
    b = trace(tmp_path / "b", steps_of(3, flip_bit(1, "backward", "layers.0.weight")))
    return Bisection(
        scenario="sums",
        criterion=Criterion("bits"),
        good=GOOD,
        bad=BAD,
        probes=(PARENT, BROKEN, FOUND),
        candidates=(FOUND,),
        found=FOUND,
        last_good=PARENT,
        verdict=diff(a, b),
        directory=DIRECTORY,
        commit=Commit(FOUND.name, "ddddddd", "The other half", "Ada", "2026-11-20"),
    )


def test_the_text_is_the_golden(golden: Callable[[str, str], None], found: Bisection) -> None:
    golden("bisect.txt", bisection_text(found, colour=False) + "\n")
    assert bisection_text(found, colour=True).startswith("\x1b[1;31mFIRST BAD\x1b[0m  ddddddd ")
    assert found.exit_code is ExitCode.OK


def test_several_candidates_are_told_with_the_reason(found: Bisection) -> None:
    several = replace(found, candidates=(BROKEN, FOUND))
    text = bisection_text(several, colour=False)
    assert text.startswith(
        "ONE OF THESE IS THE FIRST BAD\n  ccccccc Half a change  (the program ended with exit code 1)\n  ddddddd "
    )
    assert "  first difference of ddddddd The other half\\x1b[31m from bbbbbbb A comment: step 1" in text
    assert "Ada" not in text
    assert several.exit_code is ExitCode.INCOMPLETE_RECORDING


def test_an_interrupted_one_tells_how_far_it_came(found: Bisection) -> None:
    interrupted = replace(found, interrupted_by="SIGINT", candidates=(BROKEN, FOUND))
    assert bisection_text(interrupted, colour=False).startswith("interrupted by SIGINT; results so far:\n")
    assert interrupted.exit_code is ExitCode.INTERRUPTED


def test_the_json_is_plain(found: Bisection) -> None:
    told = json.loads(json.dumps(bisection_json(found)))
    assert told["found"]["name"] == FOUND.name
    assert told["commit"]["date"] == "2026-11-20"
    assert [each["outcome"] for each in told["probes"]] == ["good", "skip", "bad"]
    assert told["verdict"]["verdict"] == "diverged"
    assert (told["num_probes"], told["exit_code"], told["criterion"]["text"]) == (3, 0, "bits")
