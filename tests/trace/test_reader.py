"""The reader: cut at every byte of every file, other versions, other people's writers, traces that contradict."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness.trace
from harness import __version__
from harness.bits.digests import digest
from harness.bits.errors import TraceError
from harness.bits.files import MAX_JSON_BYTES
from harness.trace import format
from harness.trace.diff import diff
from harness.trace.format import HEADER, RecordedValue, done_payload, frame, next_chain, parse_curve, step_payload
from harness.trace.manifest import Fingerprint, Manifest, manifest_text, parse_manifest
from harness.trace.reader import MAX_ABSENT, excerpt, read_trace
from harness.trace.verdict import Kind, VerdictCode
from tests.support.manual import section
from tests.support.traces import (
    SEEDED,
    manifest_of,
    names,
    steps_of,
    trace,
    trace_of_values,
    value,
    write,
    write_ops,
)
from tests.support.verified import verify

FORMAT_MD = (Path(harness.trace.__file__).parent / "FORMAT.md").read_text("utf-8")


@pytest.mark.parametrize(
    "name", [pytest.param("rank-0.log", marks=pytest.mark.full), "rank-1.log", "manifest.json", "curve.jsonl"]
)
def test_a_trace_is_read_up_to_wherever_a_file_is_cut(tmp_path: Path, name: str) -> None:
    """Every prefix: no whole step is lost, no other is shown, and the cut is never taken for the end."""
    manifest = Manifest(Fingerprint({"seed": "7"}), world_size=2)
    whole = tmp_path / "whole"
    for rank in range(2):
        write(whole, steps_of(3), manifest, rank=rank)
    complete = read_trace(whole)
    cut_trace = tmp_path / "cut"
    shutil.copytree(whole, cut_trace)
    data = (whole / name).read_bytes()
    for size in range(len(data)):
        (cut_trace / name).write_bytes(data[:size])
        found = read_trace(cut_trace)
        if name.endswith(".log"):
            log = found.ranks[int(name[5])]
            num_global = sum(place.frame_end <= size for place in complete.ranks[0].places.values())
            assert list(log.heads) == list(range(num_global))
            assert found.steps == tuple(range(num_global))
            assert not log.is_closed
            ends = [0, len(HEADER), *(place.frame_end for place in complete.ranks[0].places.values())]
            assert log.num_skipped_bytes == size - max(end for end in ends if end <= size)
        elif name == "curve.jsonl":
            assert found.curve == complete.curve[: data[:size].count(b"\n")]
            continue
        elif size == len(data) - 1:  # the newline after the manifest
            continue
        else:
            assert found.manifest is None
        assert found.gaps
        assert diff(complete, found).kind is Kind.INCOMPLETE


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda lines: [lines[0], b"\xffgarbage\n", lines[2]], 2),
        (lambda lines: [*lines[:2], lines[2][:-2]], 3),
        (lambda lines: [b"garbage"], 1),
    ],
    ids=["garbage", "cut", "nothing else"],
)
def test_a_damaged_curve_is_told_and_equal_bits_stay_equal(
    tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]], line: int
) -> None:
    whole = trace(tmp_path / "a", steps_of(3))
    curve = write(tmp_path / "b", steps_of(3)) / "curve.jsonl"
    assert diff(whole, read_trace(tmp_path / "b")).notes == ()
    curve.write_bytes(b"".join(damage(curve.read_bytes().splitlines(keepends=True))))

    damaged = read_trace(tmp_path / "b")
    verdict = diff(whole, damaged)

    told = VerdictCode.TRACE_DAMAGED(trace="B", message=f"curve.jsonl is damaged: it was read up to line {line}")
    assert (verdict.kind, verdict.notes, len(damaged.curve)) == (Kind.EQUAL, (told,), line - 1)
    cut_out = excerpt(damaged, 0, 0)
    assert cut_out.damages == (damaged.damages if line == 1 else ())


def test_ranks_that_end_apart_have_the_steps_that_both_have(tmp_path: Path) -> None:
    manifest = Manifest(world_size=2)
    write(tmp_path / "a", steps_of(5), manifest, rank=0)
    write(tmp_path / "a", steps_of(3), manifest, rank=1, complete=False)
    found = read_trace(tmp_path / "a")
    assert found.steps == (0, 1, 2)
    assert found.gaps == ("rank-1.log was not closed",)
    (tmp_path / "a" / "rank-1.log").unlink()
    found = read_trace(tmp_path / "a")
    assert found.steps == ()
    assert found.gaps == ("rank-1.log is missing",)


def test_of_a_million_ranks_that_are_missing_a_few_are_named(tmp_path: Path) -> None:
    """A manifest of 250 bytes may claim them; comparing is not to take a minute."""
    whole = trace(tmp_path / "a", steps_of(2))
    found = replace(whole, manifest=Manifest(world_size=1_000_000, complete=True))
    assert found.gaps[0] == "rank-1.log is missing"
    assert found.gaps[MAX_ABSENT:] == ("999,935 more logs are missing",)
    assert len(diff(found, whole).notes) <= MAX_ABSENT + 2


def test_a_manifest_and_a_line_of_a_curve_that_are_too_long_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write(tmp_path / "a", steps_of(3))
    with (directory / "manifest.json").open("ab") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(TraceError, match="it has more than 33,554,432 bytes"):
        read_trace(directory)
    monkeypatch.setattr(format, "MAX_LINE_CHARS", 400)
    good, long = '{"step": 0, "loss": null, "chain": "00"}\n', '{"step": 1, "chain": "' + "0" * 400 + '"}\n'
    assert [point.step for point in parse_curve(good + long)] == [0]
    monkeypatch.setattr(format, "MAX_LINE_CHARS", 500)
    assert [point.step for point in parse_curve(good + long)] == [0, 1]


@pytest.mark.parametrize("num_ranks", [10_000_000, 10**18])
def test_a_world_that_is_too_large_is_refused(tmp_path: Path, num_ranks: int) -> None:
    trace(tmp_path, steps_of(2))
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"world_size": 1', f'"world_size": {num_ranks}'))
    with pytest.raises(TraceError, match=f"the world size is {num_ranks}"):
        read_trace(tmp_path)


def test_a_rank_that_ended_in_order_holds_up_no_other(tmp_path: Path) -> None:
    manifest = Manifest(world_size=2)
    write(tmp_path / "a", steps_of(5), manifest, rank=0)
    write(tmp_path / "a", steps_of(3), manifest, rank=1)
    found = read_trace(tmp_path / "a")
    assert (found.steps, found.gaps) == ((0, 1, 2, 3, 4), ())
    assert [list(found.logs(step)) for step in found.steps] == [[0, 1]] * 3 + [[0]] * 2


# ------------------------------------------------------------------------------------------- versions, other writers


def test_the_example_of_the_manual_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```$", section("Traces"), re.MULTILINE | re.DOTALL)
    exec(compile(code, "TRACES.md", "exec"), {})
    found = read_trace(tmp_path / "out")
    assert (found.steps, found.gaps, verify(found)) == ((0, 1, 2), (), [])
    assert found.ranks[0].columns(1).values()[0].digest == bytes.fromhex("0000003f").ljust(16, b"\0")


def test_a_newer_manifest_is_refused_with_what_can_read_it(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", steps_of(1))
    fields = json.loads((directory / "manifest.json").read_text("utf-8"))
    newer: dict[str, Any] = {"format": 2, "read_by": "0.9.0", "what": fields}
    (directory / "manifest.json").write_text(json.dumps(newer), "utf-8")
    with pytest.raises(TraceError) as caught:
        read_trace(directory)
    said = f"{directory / 'manifest.json'}: a trace of format 2; this is rlharness {__version__}"
    assert caught.value.what == said
    assert caught.value.remedy == "pip install 'rlharness>=0.9.0'"


@pytest.mark.full
@SEEDED
@given(st.dictionaries(names, names), st.dictionaries(names, names), st.lists(names), st.integers(1, 9))
def test_a_manifest_is_read_as_it_was_written(
    identity: dict[str, str], numerics: dict[str, str], argv: list[str], world_size: int
) -> None:
    manifest = Manifest(Fingerprint(identity, numerics), tuple(argv), world_size, "invariant", complete=True)
    assert parse_manifest(manifest_text(manifest)) == manifest


@pytest.mark.parametrize("text", ["null", "[]", '{"format": "x"}', '{"format": 1}', '{"format": 1, "complete": 1}'])
def test_json_of_another_shape_is_not_as_the_format_says(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text, "utf-8")
    with pytest.raises(TraceError, match=r"manifest\.json: it is valid JSON but violates the format"):
        read_trace(tmp_path)


def test_a_manifest_of_an_unknown_level_is_refused() -> None:
    with pytest.raises(TraceError, match="'sometimes'"):
        Manifest(level="sometimes")
    with pytest.raises(TraceError, match="world size is 0"):
        Manifest(world_size=0)


def shape_of(recorded_value: RecordedValue) -> str:
    return ",".join(map(str, recorded_value.shape))


def test_the_writer_of_the_documentation_writes_what_ours_does(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", FORMAT_MD, re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"^ +\S", code, re.MULTILINE)) <= 30
    theirs: dict[str, Any] = {}
    exec(compile(code, "FORMAT.md", "exec"), theirs)
    steps = [*steps_of(3), []]
    plain = [
        [(*each.key, each.dtype, shape_of(each), each.algorithm, each.digest) for each in recorded_values]
        for recorded_values in steps
    ]
    identity = {"seed": "7", "größe": "ß", "data": "9f"}
    theirs["write_trace"](tmp_path / "theirs", identity, plain)
    ours = write(tmp_path / "ours", steps, manifest_of(identity=identity))
    assert (tmp_path / "theirs" / "rank-0.log").read_bytes() == (ours / "rank-0.log").read_bytes()
    found = read_trace(tmp_path / "theirs")
    assert (found.gaps, verify(found)) == ((), [])
    assert diff(read_trace(ours), found).kind is Kind.EQUAL


# ---------------------------------------------------------------------------------- what is no trace, or contradicts


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(TraceError, match=f"no trace in {re.escape(str(place))}"):
            read_trace(place)
    (tmp_path / "rank-0.log").write_bytes(b"2026-11-20 INFO step 1")
    with pytest.raises(TraceError, match="is not a log of a trace"):
        read_trace(tmp_path)
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(TraceError, match=r"manifest\.json cannot be read: it is a directory"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["manifest.json", "rank-0.log", "curve.jsonl", "tensors/rank-0-step-0.safetensors", "ops/rank-0-step-0.jsonl"],
)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    """Opening it would wait for whoever writes to it, for good."""
    kept = [value("backward", "w", "f32", (8,), bytes([number] * 32)) for number in (1, 2)]
    sides = [tmp_path / "a", tmp_path / "b"]
    for side, each in zip(sides, kept, strict=True):
        trace_of_values(side, [[each]])
        write_ops(side, [], step=0)
    (tmp_path / "b" / name).unlink()
    os.mkfifo(tmp_path / "b" / name)
    with pytest.raises(TraceError, match=f"{re.escape(name)} cannot be read: it is a FIFO, not a regular file"):
        diff(*map(read_trace, sides))


def test_a_file_of_a_trace_and_a_directory_of_traces_are_no_traces(tmp_path: Path) -> None:
    for run in ("run-1", "run-2"):
        write(tmp_path / run, steps_of(1))
    notes = tmp_path / "notes.txt"
    notes.touch()
    elsewhere = "pass the directory that was given to --out"
    for place, what, remedy in (
        (tmp_path / "run-1" / "manifest.json", "is a file", f"name the directory: {tmp_path / 'run-1'}"),
        (tmp_path / "run-1" / "rank-0.log", "is a file", f"name the directory: {tmp_path / 'run-1'}"),
        (notes, "is a file", elsewhere),
        (tmp_path, "no trace in", f"name one of the traces in it: {tmp_path / 'run-1'}, {tmp_path / 'run-2'}"),
    ):
        with pytest.raises(TraceError, match=what) as caught:
            read_trace(place)
        assert caught.value.legal == "a directory with manifest.json and rank-0.log"
        assert caught.value.remedy == remedy


def test_a_log_that_changes_while_it_is_compared_is_said(tmp_path: Path) -> None:
    log = read_trace(write(tmp_path / "a", steps_of(2))).ranks[0]
    log.path.write_bytes(log.path.read_bytes()[: log.places[1].start + 60])
    assert log.columns(0).values() == list(steps_of(1)[0])
    with pytest.raises(TraceError, match="became shorter"):
        log.columns(1)
    log.path.unlink()
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        log.columns(0)


def written(directory: Path, *payloads: bytes) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "rank-0.log").write_bytes(HEADER + b"".join(map(frame, payloads)))
    return directory


@pytest.mark.parametrize(
    "payloads",
    [
        [b"WHAT"],
        [b"STEP"],
        [b"DONE"],
        [done_payload(0), done_payload(0)],
        [step_payload(1, bytes(16), bytes(16), []), step_payload(1, bytes(16), bytes(16), [])],
    ],
)
def test_frames_that_are_whole_and_wrong_name_their_file(tmp_path: Path, payloads: list[bytes]) -> None:
    with pytest.raises(TraceError, match=r"rank-0\.log: a frame is complete but violates the format"):
        read_trace(written(tmp_path, *payloads))


def test_a_root_over_other_leaves_is_found(tmp_path: Path) -> None:
    root = bytes(16)
    chain = next_chain(bytes(16), root)
    recorded_values = [RecordedValue("loss", "loss", 0, "f32", (), *digest(b"1234"))]
    both = step_payload(1, root, chain, [*recorded_values, recorded_values[0]._replace(name="lost")])
    directory = written(tmp_path, step_payload(0, root, chain, recorded_values), both.replace(b"lost", b"loss"))
    (directory / "manifest.json").write_text('{"format": 1, "complete": true, "fingerprint": {}}', "utf-8")
    assert verify(read_trace(directory)) == [
        "rank-0.log: the chain of step 0 does not follow from the one before",
        "rank-0.log: the chain of step 1 does not follow from the one before",
        "rank-0.log: the root of step 0 does not match its values",
        "rank-0.log: step 1 cannot be opened: a step has two values loss loss 0",
    ]


def test_a_log_that_was_closed_over_missing_steps_is_not_closed(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", steps_of(2), complete=False)
    with (directory / "rank-0.log").open("ab") as log:
        log.write(frame(done_payload(3)))
    assert not read_trace(directory).ranks[0].is_closed


def test_only_logs_of_ranks_are_read(tmp_path: Path) -> None:
    directory = write(tmp_path / "a", steps_of(1))
    for name in ("rank-00.log", "rank-x.log", "rank-.log", "rank-0.log.old"):
        (directory / name).write_bytes(b"something else")
    assert list(read_trace(directory).ranks) == [0]
