"""The probes of a bisection, played: ends that must hold, what cannot be run, what is told. No process starts."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from harness.bits.errors import HarnessError
from harness.bits.exit_codes import ExitCode
from harness.lab.bisect.bisection import (
    Bisection,
    EndsError,
    NothingToFindError,
    Outcome,
    PackageCandidates,
    RevisionSearch,
    UnavailableError,
    parse_criterion,
)
from harness.lab.experiment.launcher import Launcher
from harness.lab.experiment.worktrees import Side
from harness.recording.run_spec import RunSpec
from tests.lab.played_session import Gradient, PlayedSession, doubled, rounded, steady


@dataclass
class Versions:
    """Candidates in one line, some of which cannot be had."""

    names: Sequence[str]
    missing: frozenset[str] = frozenset()
    entered: list[str] = field(default_factory=list)
    num_open: int = 0

    def __post_init__(self) -> None:
        self.good, self.bad = self.names[0], self.names[-1]

    def suspects(self, bad: str, goods: Sequence[str]) -> list[str]:
        return PackageCandidates.suspects(cast(Any, self), bad, goods)

    def by_gain(self, bad: str, goods: Sequence[str]) -> list[str]:
        return PackageCandidates.by_gain(cast(Any, self), bad, goods)

    @property
    def versions(self) -> list[str]:
        return list(self.names)

    def describe(self, name: str) -> str:
        return f"tiny {name}"

    @asynccontextmanager
    async def at(self, name: str) -> AsyncIterator[Side]:
        if name in self.missing:
            raise UnavailableError(f"there is no wheel of {name}")
        self.entered.append(name)
        self.num_open += 1
        try:
            yield Side(Path(), Path(), {})
        finally:
            self.num_open -= 1


def hunted(
    tmp_path: Path,
    gradients: Mapping[str, Sequence[Gradient]],
    *,
    missing: str = "",
    interrupted_at: int = 10**9,
    by: str = "bits",
) -> tuple[Bisection, Versions]:
    """A bisection over the versions that `gradients` names, in their order."""
    versions = Versions(list(gradients), frozenset(missing))
    session = PlayedSession(gradients, interrupted_at=interrupted_at)
    hunt = RevisionSearch(cast(Launcher, session), cast(Any, versions), parse_criterion(by), tmp_path)
    typed = ("sums", "--set", "names=[a, b]")
    found = asyncio.run(hunt.first_bad("sums", RunSpec(("python",), typed=typed)))
    assert versions.num_open == 0
    return found, versions


def runs(text: str) -> dict[str, list[Gradient]]:
    """By letter: "g" good bits, "b" bad ones, "o" others still, "?" another each time."""
    kinds: dict[str, list[Gradient]] = {"g": [steady], "b": [doubled], "o": [rounded], "?": [steady, rounded, doubled]}
    return {chr(ord("a") + at): kinds[kind] for at, kind in enumerate(text)}


@pytest.mark.parametrize(("text", "first"), [("gb", "b"), ("ggggb", "e"), ("gbbbb", "b"), ("gggbbbb", "d")])
def test_the_first_bad_one_is_found_and_compared_with_the_one_before(tmp_path: Path, text: str, first: str) -> None:
    found, versions = hunted(tmp_path, runs(text))
    before = chr(ord(first) - 1)
    assert (found.found.name, found.last_good.name, found.exit_code) == (first, before, ExitCode.OK)
    assert versions.entered[:2] == ["a", versions.bad]
    assert len(versions.entered) == 2 + len(found.probes) <= 2 + 3
    assert {"a", "a-again"} <= {path.name for path in tmp_path.iterdir()}, "the good end is run twice"
    assert found.verdict.first is not None
    assert found.verdict.first.step == 1


def test_what_cannot_be_had_is_passed_over(tmp_path: Path) -> None:
    found, _ = hunted(tmp_path, runs("gggbb"), missing="c")
    assert [probe.name for probe in found.candidates] == ["c", "d"]
    assert found.candidates[0].reason == "there is no wheel of c"
    assert found.exit_code is ExitCode.INCOMPLETE_RECORDING


def test_what_does_not_run_is_passed_over_with_its_last_words(tmp_path: Path) -> None:
    gradients = runs("gggbb")
    session = PlayedSession(gradients, broken="c", problem="it ended with 1", printed="step 0\nZeroDivisionError\n")
    hunt = RevisionSearch(
        cast(Launcher, session), cast(Any, Versions(list(gradients))), parse_criterion("bits"), tmp_path
    )
    found = asyncio.run(hunt.first_bad("sums", RunSpec(("python",), typed=("sums",))))
    assert [probe.name for probe in found.candidates] == ["c", "d"]
    assert found.candidates[0].reason == "it ended with 1: ZeroDivisionError"


@pytest.mark.parametrize(
    ("text", "missing", "error", "said"),
    [
        ("gggg", "", NothingToFindError, "tiny d, which should be bad, equals the good one"),
        ("?ggb", "", NothingToFindError, "two runs of tiny a differ"),
        ("gggb", "a", EndsError, "tiny a cannot be run: there is no wheel of a"),
        ("gggb", "d", EndsError, "tiny d cannot be run: there is no wheel of d"),
    ],
)
def test_ends_that_do_not_hold_are_refused(
    tmp_path: Path, text: str, missing: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as refused:
        hunted(tmp_path, runs(text), missing=missing)
    assert isinstance(refused.value, HarnessError) and refused.value.remedy


def test_later_it_tells_how_far_it_came(tmp_path: Path) -> None:
    found, _ = hunted(tmp_path, runs("gggggbbbb"), interrupted_at=5)
    assert (found.exit_code, found.interrupted_by) == (ExitCode.INTERRUPTED, "SIGINT")
    assert [probe.name for probe in found.probes] == ["e"], "one that was interrupted says nothing"
    assert [probe.name for probe in found.candidates] == ["f", "g", "h", "i"]
    assert [probe.reason for probe in found.candidates[:-1]] == 3 * ["not looked at"]
    assert found.candidates[-1].outcome is Outcome.BAD
