import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import ReportError
from harness.runner.need import Need
from harness.runner.report_file import ReportTail, TestOutcome, read_report

NEED = Need(2, memory_gb=40.0, model="H100", min_capability=(9, 0))
IDS = ("tests/a.py::test_x", "tests/a.py::test_y[ü]", "tests/a.py::test_z")


def record(k: str, **fields: object) -> dict[str, object]:
    return {"k": k, **fields}


def end(nodeid: str, outcome: str, **fields: object) -> dict[str, object]:
    return record("end", id=nodeid, outcome=outcome, duration_s=0.5, **fields)


RECORDS = [
    record("hello", version=1, pid=123),
    record("collected", need=NEED.to_json(), nodeids=list(IDS)),
    record("start", id=IDS[0], timeout_s=5.0),
    end(IDS[0], "passed", reason="", text=""),
    record("start", id=IDS[1], timeout_s=None),
    end(IDS[1], "skipped", reason="no GPU", text=""),
    record("start", id=IDS[2], timeout_s=None),
    end(IDS[2], "failed", reason="assert 0", text="def test_z():\n>   assert 0\nE   assert 0"),
    record("finish", exit=1),
]


def encode(records: list[dict[str, object]]) -> bytes:
    return b"".join(json.dumps(r, ensure_ascii=False).encode() + b"\n" for r in records)


def write(directory: Path, data: bytes) -> Path:
    path = directory / "report.jsonl"
    path.write_bytes(data)
    return path


def test_a_whole_report_is_read_back(tmp_path: Path) -> None:
    report = read_report(write(tmp_path, encode(RECORDS)))
    assert report.collected
    assert report.collected_need == NEED
    assert report.nodeids == IDS
    assert report.finished_exit == 1
    assert report.ends[IDS[2]].text.endswith("E   assert 0")
    assert report.ends[IDS[2]].duration_s == 0.5
    assert report.skip_reasons() == ("no GPU",)
    assert report.num_unreadable == 0
    assert report.counts().counts == {
        TestOutcome.PASSED: 1,
        TestOutcome.SKIPPED: 1,
        TestOutcome.FAILED: 1,
    }


def test_what_was_running_and_what_never_began_are_told_apart(tmp_path: Path) -> None:
    report = read_report(write(tmp_path, encode(RECORDS[:5])))
    assert report.running == (IDS[1],)
    assert [report.outcome_of(nodeid) for nodeid in report.all_ids()] == [
        TestOutcome.PASSED,
        TestOutcome.UNFINISHED,
        TestOutcome.UNSTARTED,
    ]
    assert report.finished_exit is None


def test_no_file_is_an_empty_report(tmp_path: Path) -> None:
    report = read_report(tmp_path / "none.jsonl")
    assert not report.collected
    assert report.counts().total == 0
    assert ReportTail(tmp_path / "none.jsonl").poll() == []


def test_a_test_that_runs_again_counts_once_with_its_last_end(tmp_path: Path) -> None:
    again = [*RECORDS[:2], end(IDS[0], "failed"), record("start", id=IDS[0]), end(IDS[0], "passed")]
    assert read_report(write(tmp_path, encode(again))).counts()[TestOutcome.PASSED] == 1


def test_a_newer_version_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = write(tmp_path, encode([record("hello", version=2, pid=1)]))
    with pytest.raises(ReportError, match="version 2") as caught:
        read_report(path)
    assert "up to 1" in caught.value.legal
    assert "same version of rlharness" in caught.value.remedy


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[1]",
        b'{"k": 1}',
        b"[" * 100_000,
        b'{"k": "end", "id": 7, "outcome": "passed", "duration_s": 1}',
        b'{"k": "end", "id": "x", "outcome": "splendid", "duration_s": 1}',
        b'{"k": "collected", "need": "two", "nodeids": []}',
        b'{"k": "collected", "need": {"wings": 2}, "nodeids": []}',
        b'{"k": "finish", "exit": Infinity}',
    ],
)
def test_a_line_that_is_no_record_is_counted_and_passed_over(tmp_path: Path, line: bytes) -> None:
    report = read_report(write(tmp_path, line + b"\n" + encode(RECORDS)))
    assert report.num_unreadable == 1
    assert report.counts().total == 3


def test_of_nonsense_without_end_only_so_much_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, encode(RECORDS[:-1]) + b"x\n" * 3_000_000 + encode(RECORDS[-1:]))
    report = read_report(path)
    assert report.counts().total == 3
    assert report.finished_exit is None
    assert "lines that are not records" in report.unread
    tail = ReportTail(path)
    assert tail.poll() == RECORDS[:-1]
    assert not tail.is_behind
    assert tail.poll() == []
    tail.close()


def test_a_duration_that_is_no_number_of_seconds_is_zero(tmp_path: Path) -> None:
    line = b'{"k": "end", "id": "x", "outcome": "passed", "duration_s": NaN}\n'
    assert read_report(write(tmp_path, line)).ends["x"].duration_s == 0.0


@given(cut=st.integers(0, len(encode(RECORDS))))
def test_a_file_cut_at_any_byte_never_raises_and_invents_nothing(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    whole = read_report(write(tmp_path_factory.getbasetemp(), encode(RECORDS)))
    report = read_report(write(tmp_path_factory.getbasetemp(), encode(RECORDS)[:cut]))
    assert report.ends.items() <= whole.ends.items()
    assert report.nodeids in ((), whole.nodeids)
    assert set(report.running) <= set(IDS)
    assert report.num_unreadable == 0


@given(data=st.binary(max_size=200), at=st.integers(0, len(RECORDS)))
def test_garbage_between_records_never_raises_and_invents_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int
) -> None:
    path = write(tmp_path_factory.getbasetemp(), encode(RECORDS[:at]) + data + encode(RECORDS[at:]))
    assert set(read_report(path).all_ids()) <= set(IDS)


@given(cuts=st.lists(st.integers(0, len(encode(RECORDS))), max_size=12).map(sorted))
def test_the_tail_gives_each_record_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    data, path = encode(RECORDS), tmp_path_factory.getbasetemp() / "tail.jsonl"
    path.write_bytes(b"")
    tail, seen = ReportTail(path), []
    for cut in [*cuts, len(data)]:
        path.write_bytes(data[:cut])
        seen += tail.poll()
    assert seen == RECORDS
    assert tail.poll() == []
