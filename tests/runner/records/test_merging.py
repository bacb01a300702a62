"""Recorded runs read back, and several of them as one: outcomes, exit codes, missing shards, and what is refused."""

import json
import shutil
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.runner import events
from harness.runner.need import Need
from harness.runner.records.recorded_run import MergedRun, merge_runs, read_recorded_run
from harness.runner.schedule.packing import ShardPlan
from harness.runner.units import NeedSource, Outcome, SessionFailure, Unit, UnitResult
from tests.support.suite_runs import QUICK, run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")


@dataclass
class Record:
    """A run with these outcomes by path, as a record; None for a unit without one."""

    outcomes: dict[str, Outcome | None]
    code: int | None = 0
    shard: tuple[int, int] | None = None
    partition: str = "aa"
    is_collected: bool = True
    error: str = ""
    wall_s: float = 10.0
    wanting: tuple[str, ...] = ()
    more: list[events.Event] = field(default_factory=list)
    session_failures: tuple[SessionFailure, ...] = ()

    def write(self, path: Path) -> Path:
        units = tuple(Unit(name, Need(), NeedSource.IMPORT) for name in self.outcomes)
        number, count = self.shard or (1, 1)
        shard = ShardPlan(number, count, 9, self.partition) if self.shard else None
        told: list[events.Event] = [events.RunStarted(0.0, path.name, str(path), (), (), (), "cgroup", 2)]
        if self.is_collected:
            told.append(events.CollectionFinished(0.0, units, (1.0,) * len(units), 1.0, 1.0, 1.0, shard=shard))
        told += [
            events.UnitFinished(1.0, UnitResult(unit, outcome, for_want_of_gpus=unit.path in self.wanting))
            for unit, outcome in zip(units, self.outcomes.values(), strict=True)
            if outcome is not None
        ]
        told += self.more
        if self.code is not None:
            end = events.RunFinished(9.0, self.code, self.wall_s, 1.0, 0.0, 1.0, 1.0, self.error)
            told.append(replace(end, session_failures=self.session_failures))
        path.mkdir()
        (path / "events.jsonl").write_text("".join(events.to_json_line(event) + "\n" for event in told))
        return path


def merged(directory: Path, *records: Record) -> MergedRun:
    paths = [record.write(directory / f"run{number}") for number, record in enumerate(records)]
    return merge_runs([read_recorded_run(path) for path in paths])


def outcomes(run: MergedRun) -> dict[str, str]:
    return {path: result.outcome.value for path, result in run.state.results.items()}


@pytest.mark.parametrize("text", ["", "x\n", "[]\n", '{"event": "run_started"}\n', '{"event": "unit_finished"}\n'])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(UsageError, match="is not a recorded run") as refused:
        read_recorded_run(tmp_path)
    assert refused.value.legal
    assert refused.value.remedy
    with pytest.raises(UsageError, match="is not a recorded run"):
        read_recorded_run(tmp_path / "absent")


FAILURE = SessionFailure("log", "ValueError: at the end", "a traceback")
P, F, N = Outcome.PASSED, Outcome.FAILED, Outcome.NOT_RUN


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([Record({"a": P}), Record({"b": P})], ExitCode.OK),
        ([Record({"a": P}), Record({"b": F}, 1)], ExitCode.TESTS_FAILED),
        ([Record({"a": P}), Record({}, 0, (2, 2)), Record({"b": P}, 0, (1, 2))], ExitCode.OK),
        ([Record({"a": P}, 0, (1, 3)), Record({"b": P}, 0, (3, 3))], ExitCode.INTERRUPTED),
        ([Record({"a": F}, 1, (1, 3))], ExitCode.TESTS_FAILED),
        ([Record({"a": P, "b": N}, 2), Record({"b": P})], ExitCode.OK),
        ([Record({"a": P, "b": N}, 2), Record({"c": P})], ExitCode.INTERRUPTED),
        ([Record({"a": P, "b": None}, None), Record({"c": P})], ExitCode.INTERRUPTED),
        ([Record({"a": P}), Record({}, None, is_collected=False)], ExitCode.INTERRUPTED),
        ([Record({"a": P}), Record({}, 4, is_collected=False, error="bad path")], ExitCode.USAGE_ERROR),
        ([Record({"a": P}, 4), Record({"b": P})], ExitCode.USAGE_ERROR),
        ([Record({"a": F}, 1), Record({"b": P}, 3)], ExitCode.INTERNAL_ERROR),
        ([Record({"a": P}), Record({"b": P}, 1, session_failures=(FAILURE,))], ExitCode.TESTS_FAILED),
        ([Record({"a": Outcome.NO_TESTS}, 5), Record({"b": P})], ExitCode.OK),
        ([Record({"a": Outcome.NO_TESTS}, 5), Record({"b": Outcome.NO_TESTS}, 5)], ExitCode.NOTHING_COLLECTED),
        ([Record({"a": N}, 14, wanting=("a",)), Record({"b": P})], ExitCode.UNITS_NOT_RUN),
        ([Record({"a": N}, 0, wanting=("a",)), Record({"b": P})], ExitCode.OK),
        ([Record({"a": N}, 14, wanting=("a",)), Record({"a": P})], ExitCode.OK),
    ],
)
def test_the_exit_code_is_that_of_one_run(tmp_path: Path, records: list[Record], code: ExitCode) -> None:
    assert merged(tmp_path, *records).exit_code == code


def test_a_quarantined_gpu_stays_in_the_exit_code(tmp_path: Path) -> None:
    record = Record({"a": P}, 13, more=[events.GpuQuarantined(1.0, "a", "G", "held")])
    assert merged(tmp_path, record, Record({"b": P})).exit_code == ExitCode.GPU_QUARANTINED


def test_missing_shards_are_named(tmp_path: Path) -> None:
    run = merged(tmp_path, Record({"a": P}, 0, (2, 4)), Record({"b": P}, 0, (3, 4), wall_s=30.0))
    assert (run.num_shards, run.missing_shards) == (4, (1, 4))
    assert run.finished.error == "shard 1/4 is missing; shard 4/4 is missing"
    assert run.finished.wall_s == 30.0


@pytest.mark.parametrize("order", [1, -1])
def test_a_unit_of_two_runs_has_the_outcome_of_the_one_that_ran_it(tmp_path: Path, order: int) -> None:
    records = [Record({"a": N, "b": P}, 2), Record({"a": F}, 1)][::order]
    assert outcomes(merged(tmp_path, *records)) == {"a": "failed", "b": "passed"}


@pytest.mark.parametrize("other", [P, Outcome.INTERRUPTED])
def test_a_unit_that_two_runs_have_run_is_refused(tmp_path: Path, other: Outcome) -> None:
    with pytest.raises(UsageError) as refused:
        merged(tmp_path, Record({"a": P}), Record({"a": other}))
    assert refused.value.what.startswith(f"a is passed in {tmp_path / 'run0'} and ")
    assert refused.value.remedy


@pytest.mark.parametrize("other", [Record({}, 0, (2, 3)), Record({}, 0, (2, 2), "bb")])
def test_shards_that_do_not_fit_together_are_refused(tmp_path: Path, other: Record) -> None:
    with pytest.raises(UsageError, match=r"partition bb|shard 2/3"):
        merged(tmp_path, Record({}, 0, (1, 2)), other)


def test_a_unit_without_an_outcome_has_none_in_the_merged_run(tmp_path: Path) -> None:
    run = merged(tmp_path, Record({"a": P, "b": None, "c": None}, None), Record({"b": F}, 1))
    assert (outcomes(run), len(run.state.units)) == ({"a": "passed", "b": "failed"}, 3)
    assert run.errors == (f"{tmp_path / 'run0'}: its record of events is incomplete; no outcome of b, c",)


BROKEN = (
    b"no json",
    b"[1, 2]",
    b'{"event": "run_finished", "t": NaN}',
    b'{"event": "unit_finished", "t": 1, "result": []}',
    b'{"event": "run_finished", "t": 1, "exit_code": 1e999}',
    b'{"event": "run_finished", "t": 1, "exit_code": 77, "wall_s": 1, "sequential_s": 1, "utilisation": 0, '
    b'"lower_bound_s": 0, "makespan_s": 1}',
    b"[" * 100_000,
)


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: line[:40].decode())
def test_a_line_that_is_no_event_is_passed_over_and_said(tmp_path: Path, line: bytes) -> None:
    path = Record({"a": P}).write(tmp_path / "run")
    before = read_recorded_run(path)
    with (path / "events.jsonl").open("ab") as record:
        record.write(line + b"\n")
    assert read_recorded_run(path) == replace(before, num_unreadable=1)
    run = merge_runs([read_recorded_run(path)])
    assert (run.exit_code, run.errors) == (ExitCode.INTERRUPTED, (f"{path}: its record of events is incomplete",))


@pytest.mark.full
def test_a_record_cut_anywhere_never_has_another_outcome_than_the_run(tmp_path: Path) -> None:
    crash = "import os\ndef test_fine(): pass\ndef test_dies(): os.kill(os.getpid(), 9)\n"
    failing = "def test_fine(): pass\ndef test_bad(): assert 0\n"
    suite = write_suite(tmp_path / "suite", {"test_a.py": QUICK, "test_b.py": failing, "test_c.py": crash})
    known = run(suite, "run", "--gpus", "none").outcomes
    record = suite / ".rlharness" / "runs" / "latest" / "events.jsonl"
    data = record.read_bytes()
    ends = [number for number, byte in enumerate(data) if byte == ord("\n")]
    for size in sorted({*ends, *(end - 20 for end in ends), *(end + 1 for end in ends)}):
        record.write_bytes(data[:size])
        try:
            found = merge_runs([read_recorded_run(record.parent)])
        except UsageError:  # not even its first line
            assert size <= ends[0]
            continue
        assert outcomes(found).items() <= known.items()
        assert found.exit_code in (ExitCode.TESTS_FAILED, ExitCode.INTERRUPTED)
        assert size >= ends[-1] or "its record of events is incomplete" in found.finished.error
    record.write_bytes(data[: ends[-2]])
    told = run(tmp_path, "merge", str(record.parent))
    assert "killed" not in told.stdout
    assert "its record of events is incomplete" in told.stdout


@pytest.mark.full
def test_shards_of_a_suite_are_merged_with_their_reports(tmp_path: Path) -> None:
    failing = "def test_fine(): pass\ndef test_bad(): assert 1 == 2, 'the reason'\n"
    suite = write_suite(tmp_path / "suite", {"test_a.py": QUICK, "test_b.py": failing, "test_c.py": QUICK})
    for number in (1, 2):
        run(suite, "run", "--gpus", "none", "--shard", f"{number}/2")
        shutil.copytree(suite / ".rlharness" / "runs" / "latest", tmp_path / f"shard-{number}")
    shutil.rmtree(suite / ".rlharness")
    done = run(tmp_path, "merge", "shard-1", "shard-2", "--junit", "out/all.xml")
    assert done.code == ExitCode.TESTS_FAILED
    assert done.stdout.startswith("rlharness merge: 2 runs, 2 shards\n  shard 1/2, 2 units, exit code ")
    assert done.stdout.count("E   AssertionError: the reason") == 1, "its output lies where it was copied to"
    assert "3 units: 2 passed, 1 failed in " in done.stdout.splitlines()[-1]
    suites = ET.parse(tmp_path / "out" / "all.xml").getroot()
    assert (suites.get("tests"), suites.get("failures")) == ("4", "1")
    told = json.loads(run(tmp_path, "merge", "shard-2", "--json").stdout)
    assert told["missing_shards"] == [1]
    assert [each["shard"] for each in told["runs"]] == ["2/2"]
    twice = run(tmp_path, "merge", "shard-1", "shard-1")
    assert twice.code == ExitCode.USAGE_ERROR
    assert "test_a.py is passed in shard-1 and passed in shard-1" in twice.stderr
