"""What runs are to each other: pairs, exit codes, operations that are not to be trusted, conditions."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.experiment.launcher import OUTPUT, Run
from harness.lab.replay.replay import Replay, compare_runs
from harness.recording.operations import OpLog
from harness.trace.ops import OpDifference
from harness.trace.reader import read_trace
from harness.trace.verdict import Kind
from tests.support.replays import OP, plan_of, run_of
from tests.support.traces import Change, flip_bit, manifest_of, steps_of, write

OTHER = flip_bit(1, "backward", "layers.0.weight")
STILL_OTHER = flip_bit(1, "backward", "layers.1.weight")
OTHER_BATCH = flip_bit(1, "rollout", "tokens")
SAME: Change = flip_bit(99, "", "")


def pairs(replay: Replay) -> list[tuple[str, str, str]]:
    return [(each.a, each.b, each.verdict.kind.value) for each in replay.comparisons]


def test_processes_without_a_rank_may_arrive_in_any_order(tmp_path: Path) -> None:
    """Of each run, and of each run that records operations."""

    def run(number: int, order: tuple[int, int], *, has_operations: bool = False) -> Run:
        made = run_of(tmp_path, number, op="b" if has_operations else "")
        place = made.recording.directory
        shutil.rmtree(place)
        for rank, process in enumerate(order):
            change = flip_bit(0, "rollout", "tokens") if process else SAME
            manifest = replace(manifest_of(), world_size=2, unranked=(0, 1))
            write(place, steps_of(3, change), manifest, rank=rank)
            if has_operations:
                log = OpLog(place, rank=rank, step=1, say=print)
                log.append({"i": 0, **OP, "out": [f"f32 8 xxh3_128 {process}"]})
                log.close()
        (place / OUTPUT).touch()
        return made

    runs = [run(1, (0, 1)), run(1, (1, 0), has_operations=True), run(2, (1, 0)), run(2, (0, 1), has_operations=True)]
    (comparison,) = compare_runs(plan_of(tmp_path, op_step=1), runs).comparisons
    assert comparison.verdict.kind is Kind.EQUAL
    assert [(each.rank, each.first) for each in comparison.operations] == [(0, None), (1, None)]
    assert comparison.notes == ()


def test_exit_codes_by_weight(tmp_path: Path) -> None:
    whole, cut, other = run_of(tmp_path, 1), run_of(tmp_path, 2, problem="it failed"), run_of(tmp_path, 3, OTHER)
    plan = plan_of(tmp_path)
    assert compare_runs(plan, [whole, cut]).exit_code == ExitCode.INCOMPLETE_RECORDING
    assert compare_runs(plan, [whole, cut, other]).exit_code == ExitCode.DIVERGED
    assert compare_runs(plan, [whole]).exit_code == ExitCode.INCOMPLETE_RECORDING, "one run proves nothing"
    assert compare_runs(plan, []).exit_code == ExitCode.INCOMPLETE_RECORDING
    assert compare_runs(plan, [whole, other], "SIGINT").exit_code == ExitCode.INTERRUPTED


@pytest.mark.parametrize(
    ("runs", "with_operations", "doubt"),
    [
        ((SAME, SAME), (SAME, SAME), ""),
        ((SAME, OTHER), (SAME, OTHER), ""),
        ((SAME, SAME), (SAME, OTHER), "step 1 is nondeterministic"),
        ((SAME, SAME), (OTHER, OTHER), "not valid"),
        ((SAME, OTHER), (SAME, STILL_OTHER), "step 1 is nondeterministic"),
        ((SAME, OTHER), (SAME, SAME), "the difference is intermittent"),
    ],
)
def test_operations_are_trusted_where_their_step_came_out_as_without_them(
    tmp_path: Path, runs: tuple[Change, Change], with_operations: tuple[Change, Change], doubt: str
) -> None:
    recorded = [
        run
        for number, plain, other in zip((1, 2), runs, with_operations, strict=True)
        for run in (run_of(tmp_path, number, plain), run_of(tmp_path, number, other, op=f"b{number}"))
    ]
    (comparison,) = compare_runs(plan_of(tmp_path, op_step=1), recorded).comparisons
    (operations,) = comparison.operations
    assert operations.first is not None
    assert operations.first.what is OpDifference.OUTPUT
    assert len(comparison.notes) == bool(doubt)
    assert all(doubt in note for note in comparison.notes)


def test_operations_of_against_are_those_of_the_trace_itself(tmp_path: Path) -> None:
    golden = read_trace(run_of(tmp_path / "golden", 1, op="b1").recording.directory)
    runs = [run_of(tmp_path, 1), run_of(tmp_path, 1, op="b1")]
    (comparison,) = compare_runs(replace(plan_of(tmp_path, op_step=1), against=golden), runs).comparisons
    assert comparison.operations[0].first is None
    assert comparison.notes == ()
