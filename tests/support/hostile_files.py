"""Every reader of files and messages that somebody else may have written, with documents that it understands.

    document ─▶ hypothesis or Atheris changes it ─▶ Reader.read ─▶ a value, or one of the errors that it may raise

A reader may answer with what it could read, or refuse. It may not raise anything else, hang, or take memory without
bound.
"""

import json
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

from harness.bits.errors import (
    ReportError,
    TraceError,
    UsageError,
)
from harness.lab.experiment.plain_yaml import read_yaml
from harness.lab.gate.golden import Acceptance, Golden, GoldenError, read_goldens, write_golden
from harness.recording.metrics import PrintedMetrics
from harness.recording.run_spec import REJECTION, EntryCall, read_rejection
from harness.runner.records.recorded_run import read_recorded_run
from harness.runner.report_file import read_report
from harness.trace.format import HEADER, CurvePoint, curve_line, frame, parse_curve, read_digested
from harness.trace.manifest import Fingerprint, Manifest, manifest_text, parse_manifest
from harness.trace.ops import read_ops
from harness.trace.reader import read_trace
from harness.trace.values import Float
from harness.trace.writer import TraceWriter
from tests.support.hostile_checkpoints import readers_of_rlcore
from tests.support.hostile_messages import readers_of_messages
from tests.support.hostile_readers import Reader, json_lines, of_file, of_text
from tests.support.verified import verify


def readers(run: Path, trace: Path) -> list[Reader]:
    """All of them; `run` is the directory of a recorded run of tests, `trace` that of a trace with all it can have."""
    return [
        *_readers_of_traces(trace),
        *_readers_of_runs(run),
        *_readers_of_results(),
        *_readers_of_calls(),
        *readers_of_messages(),
        *readers_of_rlcore(),
    ]


def _readers_of_traces(trace: Path) -> list[Reader]:
    (ops,) = trace.glob("ops/*.jsonl")
    (tensors,) = trace.glob("tensors/*.safetensors")
    rank, step = 0, int(ops.stem.rpartition("-")[2])
    log = (trace / "rank-0.log").read_bytes()
    manifest, curve = (trace / "manifest.json").read_bytes(), (trace / "curve.jsonl").read_bytes()
    values = read_trace(trace).columns(step, rank).values()
    kept = next(each for each in values if read_digested(tensors, each) is not None)
    beside = {"rank-0.log": log, "curve.jsonl": curve}
    return [
        Reader("manifest.json", (manifest, _manifest()), of_text(parse_manifest), (TraceError,)),
        Reader("curve.jsonl", (curve, _curve()), of_text(parse_curve)),
        Reader("rank-0.log", (log,), of_file("rank-0.log", _verified, {"manifest.json": manifest}), (TraceError,)),
        Reader(
            "frames of a log",
            (log,),
            lambda data, at: of_file("rank-0.log", _verified, {"manifest.json": manifest})(_with_checksums(data), at),
            (TraceError,),
        ),
        Reader("a trace", (manifest,), of_file("manifest.json", _verified, beside), (TraceError,)),
        Reader(
            "operations",
            (ops.read_bytes(),),
            of_file(f"ops/{ops.name}", partial(read_ops, rank=rank, step=step)),
            (TraceError,),
        ),
        Reader(
            "tensors",
            (tensors.read_bytes(),),
            of_file("t", lambda at: read_digested(at / "t", kept)),
            (TraceError, OSError),
        ),
    ]


def _verified(directory: Path) -> object:
    trace = read_trace(directory)
    return verify(trace), trace.gaps


def _with_checksums(log: bytes) -> bytes:
    """A log whose frames have the checksums of what stands in them: nobody who fuzzes guesses one."""
    at, found = len(HEADER), [log[: len(HEADER)]]
    while at + 4 < len(log):
        length = min(int.from_bytes(log[at : at + 4], "little"), len(log) - at - 4)
        found.append(frame(log[at + 4 : at + 4 + length]))
        at += 4 + length + 8
    return b"".join(found)


def _readers_of_runs(run: Path) -> list[Reader]:
    events, report = ((run / name).read_bytes() for name in ("events.jsonl", "units/0000/report.jsonl"))
    return [
        Reader(
            "report.jsonl",
            (report,),
            of_file("report.jsonl", lambda at: read_report(at / "report.jsonl")),
            (ReportError, OSError),
        ),
        Reader("events.jsonl", (events,), of_file("events.jsonl", read_recorded_run), (UsageError,)),
    ]


def _readers_of_results() -> list[Reader]:
    files = _golden()
    golden = of_file("k/golden.json", read_goldens, files)
    return [
        Reader("golden.json", (files.pop("k/golden.json"),), golden, (GoldenError,)),
        Reader("a line of numbers", (b'{"loss": 1.5, "step": 3}',), of_text(_numbers)),
    ]


def _numbers(line: str) -> object:
    found: dict[str, object] = {}
    PrintedMetrics([], found.update).read_line(line, has_json=True)
    return found


def _readers_of_calls() -> list[Reader]:
    refusal = json_lines({"what": "w", "legal": "l", "remedy": "r"})
    scenario = b"entry: a.b:c\nconfig:\n  x: [1, 2.5, null]\n"
    return [
        Reader("call.json", (_call(),), lambda data, _: EntryCall.parse(data), (ValueError,)),
        Reader("refusal.json", (refusal,), of_file(REJECTION, read_rejection)),
        Reader("a scenario", (scenario,), of_text(partial(read_yaml, where="scenario")), (UsageError,)),
    ]


def _manifest() -> bytes:
    fingerprint = Fingerprint({"config": "1"}, {"python": "3.11"}, {"commit": "c"}, {"threads": "2"})
    return manifest_text(Manifest(fingerprint, ("train.py",), 2, "invariant", True, unranked=(0, 1))).encode()


def _curve() -> bytes:
    return "".join(curve_line(CurvePoint(step, {"loss": Float.of(0.5)}, "0" * 32)) for step in (0, 1)).encode()


def _golden() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        with TraceWriter(
            Path(directory, "run"), Manifest(Fingerprint({"config": "1"}, {"cpu": "x"})), say=print
        ) as writer:
            writer.append(0, [])
        golden = Golden(read_trace(Path(directory, "run")), (Acceptance("2026-01-01", "c", "why", "who"),))
        write_golden(Path(directory, "k"), golden)
        return {f"k/{path.name}": path.read_bytes() for path in Path(directory, "k").iterdir()}


def _call() -> bytes:
    call = EntryCall("a.b:run", {"task": {"path": "x", "weights": [1, 2.5]}}, ("runtime",), {"run": "a.b", "step": "c"})
    return json.dumps(asdict(call)).encode()
