"""What `rlharness replay` prints: verdicts, failing runs, the command that looks closer, JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.lab.replay.replay import Replay, compare_runs
from harness.process.program_output import TAIL_LINES, output_tail
from harness.render.divergence import verdict_text
from harness.render.operations import operations_text
from harness.render.replay import replay_json, replay_text
from harness.render.run_lines import RunLines
from tests.support.replays import plan_of, report, run_of, with_reports
from tests.support.traces import flip_bit

OTHER = flip_bit(1, "rollout", "tokens")
SAME = flip_bit(9, "", "")


def lines_of(replay: Replay) -> list[str]:
    return replay_text(replay, colour=False).splitlines()


def verdicts(replay: Replay) -> list[list[str]]:
    return [verdict_text(comparison.verdict, colour=False).splitlines() for comparison in replay.comparisons]


def test_diverged_runs(tmp_path: Path) -> None:
    runs = [
        with_reports(run_of(tmp_path, number, change), report(number, str(number)))
        for number, change in ((1, flip_bit(9, "", "")), (2, OTHER), (3, flip_bit(0, "loss", "x")))
    ]
    replay = compare_runs(plan_of(tmp_path, num_runs=3), runs)
    first, second = verdicts(replay)
    assert first[0] == "DIVERGED  step 1: the tokens of the rollout differ"
    assert lines_of(replay) == [
        "A: run 1  B: run 2",
        *first,
        "A: run 1  B: run 3",
        *second,
        "  look closer: rlharness replay --step 1 --trace-ops -- python train.py --lr 1e-3",
        f"  traces: {tmp_path}",
    ]


def test_runs_that_failed(tmp_path: Path) -> None:
    output = (
        "".join(f"line {number}\n" for number in range(40)) + "\x1b[2Jboom \udce4".encode("utf-8", "replace").decode()
    )
    runs = [run_of(tmp_path, 1, output=output, problem="it broke"), run_of(tmp_path, 2, problem="it broke")]
    runs[1] = with_reports(runs[1], replace(report(1, "h"), unfinished_step=3))
    lines = lines_of(compare_runs(plan_of(tmp_path), runs))
    at = lines.index("run 1 is incomplete")
    assert lines[at : at + 5] == [
        "run 1 is incomplete",
        "  it broke",
        "    remedy: a remedy",
        f"  last lines of its output ({tmp_path}/run-1/output.log):",
        "  | line 26",
    ]
    assert lines[at + 3 + TAIL_LINES] == "  | boom ?"
    assert f"  it printed nothing ({tmp_path}/run-2/output.log)" in lines
    assert lines[-2] == "  look closer: rlharness replay --step 3 --trace-ops -- python train.py --lr 1e-3"


def test_operations_follow_their_verdict(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, number, change, op=op and f"b{number}")
        for number, change in ((1, SAME), (2, OTHER))
        for op in ("", "b")
    ]
    replay = compare_runs(plan_of(tmp_path, op_step=1), runs)
    (comparison,) = replay.comparisons
    shown = [line for line in operations_text(comparison.operations[0]) if "rlharness replay" not in line]
    lines = lines_of(replay)
    assert lines[1:-3] == [*verdicts(replay)[0], *shown]
    assert lines[-3:-1] == [
        "    valid: this recording did not change step 1",
        "  test whether a level removes it: rlharness replay --level deterministic -- python train.py --lr 1e-3",
    ]
    (told,) = replay_json(replay)["comparisons"]
    assert told["operations"][0]["first"]["what"] == "output"
    elsewhere = lines_of(compare_runs(plan_of(tmp_path, op_step=2), runs))
    assert "  look closer: rlharness replay --step 1 --trace-ops -- python train.py --lr 1e-3" in elsewhere


def test_a_difference_that_vanishes_under_operations_has_suspects(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, number, SAME if op else change, op=op)
        for number, change in ((1, SAME), (2, OTHER))
        for op in ("", "b")
    ]
    replay = compare_runs(plan_of(tmp_path, op_step=1), runs)
    lines = lines_of(replay)
    at = lines.index("    torch documents these operations of step 1 as nondeterministic:")
    assert lines[at + 1 : at + 3] == [
        "      backward aten.index_put.default (#0), train.py:41 forward",
        "    --level deterministic uses deterministic kernels where torch has them",
    ]
    command = "rlharness replay --level deterministic -- python train.py --lr 1e-3"
    assert f"  test whether a level removes it: {command}" in lines
    (told,) = replay_json(replay)["comparisons"]
    assert [each["name"] for each in told["suspects"]] == ["aten.index_put.default"]


@pytest.mark.parametrize(
    ("level", "command"),
    [
        ("deterministic", "see both on one page: rlharness report {0}/run-1 {0}/run-2"),
        ("off", "test whether a level removes it: rlharness replay --level deterministic -- python"),
    ],
)
def test_every_difference_ends_with_a_command(tmp_path: Path, level: str, command: str) -> None:
    runs = [run_of(tmp_path, number, change, op=op) for number, change in ((1, SAME), (2, OTHER)) for op in ("", "b")]
    lines = lines_of(compare_runs(plan_of(tmp_path, op_step=1, level=level), runs))
    assert lines[-2].startswith("  " + command.format(tmp_path))


def test_the_first_operation_that_makes_a_nan_is_named(tmp_path: Path) -> None:
    for words, told in (("aa nan", ["    first NaN: produced"]), ("aa inf", []), ("aa", [])):
        place = tmp_path / words
        runs = [run_of(place, number, SAME, op=op) for number in (1, 2) for op in ("", words)]
        replay = compare_runs(plan_of(place, op_step=1), runs)
        found = [line for line in lines_of(replay) if line.strip().startswith("first ")]
        assert [line[:23] for line in found] == told, "an Inf alone may be meant"
        (comparison,) = replay_json(replay)["comparisons"]
        assert (comparison["nan"] is not None) is bool(told)


def test_the_tail_of_an_output_is_harmless_and_short(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    assert output_tail(path) == []
    path.write_bytes(b"x" * 100_000 + b'\n  File "a.py"\n\tx\n\x1b]0;owned\x07last\n')
    tail = output_tail(path)
    assert tail[-3:] == ['  File "a.py"', "    x", "last"]
    assert all(len(line) <= 300 for line in tail)


def test_json_holds_plain_values_and_no_secrets(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    plan = replace(plan, run_specs=(replace(plan.run_spec, argv=("python", "--token", "abc")),))
    told = json.loads(json.dumps(replay_json(compare_runs(plan, [run_of(tmp_path, 1), run_of(tmp_path, 2, OTHER)]))))
    assert told["command"] == ["python", "--token", "<redacted>"]
    assert (told["version"], told["exit_code"], told["directory"], told["level"]) == (1, 10, str(tmp_path), "off")
    assert [run["name"] for run in told["runs"]] == ["run 1", "run 2"]
    assert told["comparisons"][0]["first"]["step"] == 1


def test_lines_of_runs_that_go_on_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    lines = RunLines()
    lines.title = "run 1 of 2"
    lines.begin()
    for second in range(70):
        lines.progress(second, float(second))
    lines.end("run 1: 70 steps in 70.0 s")
    lines.title = "run 2 of 2, with operations"
    lines.begin()
    lines.progress(1, 29.0)
    assert capsys.readouterr().err.splitlines() == [
        "rlharness: run 1 of 2 begins",
        "rlharness: run 1 of 2: 30 steps after 30 s",
        "rlharness: run 1 of 2: 60 steps after 60 s",
        "rlharness: run 1: 70 steps in 70.0 s",
        "rlharness: run 2 of 2, with operations begins",
    ]
