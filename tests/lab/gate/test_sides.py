"""The runs of a gate, played: in turns, as many as it takes, and what follows from them. No process is started."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from harness.bits.findings import Finding
from harness.lab.experiment.launcher import Launcher
from harness.lab.experiment.recording_result import Problem
from harness.lab.experiment.worktrees import Side
from harness.lab.gate import gate
from harness.lab.gate.change import Change, Comparison, GateCode
from harness.lab.gate.gate import BASE, HEAD, BrokenRun, GateContext, Interrupted, Recorder, compare_sides
from harness.recording.run_spec import Rejection, RunSpec
from tests.lab.played_session import Gradient, PlayedSession, doubled, rounded, steady


def compared(tmp_path: Path, session: PlayedSession, *, num_runs: int = 2) -> tuple[Comparison, PlayedSession]:
    recorder = Recorder(cast(Launcher, session), tmp_path)
    context = GateContext("sums", "smoke", Side(tmp_path, tmp_path, {}), RunSpec(("python",)))
    return asyncio.run(compare_sides(recorder, {BASE: context, HEAD: context}, num_runs)), session


def test_sides_run_in_turns(tmp_path: Path) -> None:
    found, session = compared(tmp_path, PlayedSession({BASE: [steady], HEAD: [steady]}), num_runs=3)
    assert [name for name, _ in session.asked] == [BASE, HEAD] * 3
    assert found.change is Change.EQUAL


@pytest.mark.parametrize(("head", "change"), [(rounded, Change.NUMERICS), (doubled, Change.BEHAVIOUR)])
def test_where_they_part_one_more_pair_keeps_its_tensors(tmp_path: Path, head: Gradient, change: Change) -> None:
    found, session = compared(tmp_path, PlayedSession({BASE: [steady], HEAD: [head]}), num_runs=1)
    assert session.asked == [(BASE, None), (HEAD, None), ("base-kept", 1), ("head-kept", 1)]
    assert found.change is change
    rounding, verdict = found.rounding, found.verdict
    assert rounding is not None and verdict is not None and verdict.first is not None
    assert (rounding.step, rounding.first) == (1, "backward w")
    assert verdict.first.value is not None, "the distance is that of the pair that was kept"
    assert verdict.first.value.max_ulp == rounding.first_ulp
    assert verdict.num_steps == 3, "the verdict is on the whole runs"


@pytest.mark.parametrize("side", [BASE, HEAD])
def test_a_side_that_differs_from_itself_is_no_change(tmp_path: Path, side: str) -> None:
    gradients = {BASE: [steady], HEAD: [steady], side: [steady, doubled]}
    found, _ = compared(tmp_path, PlayedSession(gradients))
    assert found.change is Change.NONDETERMINISTIC
    assert found.reasons == (GateCode.SIDE_NONDETERMINISTIC(side=side),)


def test_what_is_too_much_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_BYTES", 10)
    found, session = compared(tmp_path, PlayedSession({BASE: [steady], HEAD: [rounded]}), num_runs=1)
    assert session.asked == [(BASE, None), (HEAD, None)] * 2, "another pair shows that each agrees with itself"
    assert (found.change, found.rounding) == (Change.NUMERICS, None)


@pytest.mark.parametrize("side", [BASE, HEAD])
def test_a_value_that_one_side_alone_records_changes_behaviour(tmp_path: Path, side: str) -> None:
    session = PlayedSession({BASE: [steady], HEAD: [steady]}, records_more=side)
    found, _ = compared(tmp_path, session, num_runs=1)
    code = GateCode.VALUE_ONLY_AT_BASE if side == BASE else GateCode.VALUE_ONLY_AT_HEAD
    assert (found.change, found.reasons) == (Change.BEHAVIOUR, (code(),))


def failed(side: str, message: str, remedy: str = "") -> Finding:
    return GateCode.RUN_FAILED(side=side, message=message, remedy=remedy)


def test_what_does_not_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(BrokenRun) as broken:
        compared(tmp_path, PlayedSession({BASE: [steady], HEAD: [steady]}, problem="it ended with 1"))
    assert (broken.value.side, broken.value.reasons) == (HEAD, (failed(HEAD, "it ended with 1"),))
    refusing = PlayedSession(
        {BASE: [steady], HEAD: [steady]}, problem="x", refusal=Rejection("unknown key lrr", "lr", "")
    )
    with pytest.raises(BrokenRun) as refused:
        compared(tmp_path / "refused", refusing)
    assert refused.value.reasons == (failed(HEAD, "unknown key lrr (legal: lr)"),)
    recording = replace(broken.value.run.recording, problems=(Problem("it has no seed", "give it --seed"),))
    mendable = BrokenRun(HEAD, replace(broken.value.run, recording=recording))
    assert mendable.reasons == (failed(HEAD, "it has no seed", "give it --seed"),)
    empty = BrokenRun(BASE, replace(broken.value.run, recording=replace(recording, problems=())))
    assert empty.reasons == (failed(BASE, "it recorded no step"),)


def test_a_signal_ends_it_before_the_next_run(tmp_path: Path) -> None:
    session = PlayedSession({BASE: [steady], HEAD: [steady]}, interrupted_at=2)
    with pytest.raises(Interrupted):
        compared(tmp_path, session)
    assert len(session.asked) == 2
    early = PlayedSession({BASE: [steady], HEAD: [steady]}, interrupted_by="SIGTERM")
    with pytest.raises(Interrupted):
        compared(tmp_path / "early", early)
    assert early.asked == [], "one that came between runs keeps the next from beginning"


@pytest.mark.parametrize("side", [BASE, HEAD])
def test_with_one_run_of_each_the_kept_pair_shows_that_a_side_differs_from_itself(tmp_path: Path, side: str) -> None:
    gradients = {BASE: [steady], HEAD: [rounded], side: [rounded if side == HEAD else steady, doubled]}
    found, session = compared(tmp_path, PlayedSession(gradients), num_runs=1)
    assert found.change is Change.NONDETERMINISTIC
    assert len(session.asked) == 4


@pytest.mark.parametrize(("again", "change"), [(steady, Change.BEHAVIOUR), (rounded, Change.NONDETERMINISTIC)])
def test_another_shape_is_shown_to_be_no_whim_by_another_pair(tmp_path: Path, again: Gradient, change: Change) -> None:
    session = PlayedSession({BASE: [steady, again], HEAD: [lambda step: (*steady(step), 1.0)]})
    found, _ = compared(tmp_path, session, num_runs=1)
    assert session.asked == [(BASE, None), (HEAD, None)] * 2
    assert found.change is change
