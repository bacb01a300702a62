"""Readers of what other processes say, and of files that programs, users and other tools have written."""

import json
import struct
import tempfile
from pathlib import Path

from harness.bits.errors import TraceError, UsageError
from harness.lab.experiment.recording_result import read_reports
from harness.machine.network.interfaces import read_nccl_settings
from harness.process.program_output import output_tail
from harness.recording.metrics import Stop, read_stop
from harness.recording.run_spec import PROCESSES, Report
from harness.recording.sentinel_report import (
    BUNDLES,
    MANIFEST,
    Difference,
    Finding,
    Location,
    Moment,
    read_findings,
)
from harness.runner.config import load_config
from harness.trace.fingerprint import identify
from tests.support.hostile_readers import Reader, json_lines, of_file


def readers_of_messages() -> list[Reader]:
    """All of them."""
    return [*_readers_of_hosts(), *_readers_of_programs(), *_readers_of_projects()]


def _readers_of_hosts() -> list[Reader]:
    return [
        Reader(
            "nccl.conf",
            (b"# a\nNCCL_DEBUG=INFO\n",),
            of_file("conf", lambda at: read_nccl_settings({}, str(at / "conf"))),
        ),
    ]


def _readers_of_programs() -> list[Reader]:
    report = Report(7, ("train.py",), "/bin/python", rank=0, num_steps=2, metrics=("loss",))
    place = Location(0, "alpha", "cpu")
    difference = Difference("weight", "a", {0: "x", 1: "y"}, (0, 1))
    finding = Finding(3, Moment.AFTER_STEP, (place,), (difference,), 1, 2, (place,))
    stop = Stop("loss>1", 3, phase="loss", name="loss", element=(1, 2), known=("a",))
    return [
        Reader(
            "a report of a process",
            (report.to_text().encode(),),
            of_file(f"{PROCESSES}/7.json", read_reports),
        ),
        Reader(
            "a finding of the sentinel",
            (finding.to_text().encode(),),
            of_file(f"{BUNDLES}/step-3-after_step/{MANIFEST}", read_findings),
        ),
        Reader(
            "a stop", (json_lines(_fields(stop)),), of_file("stop", lambda at: read_stop(at / "stop")), (TraceError,)
        ),
        Reader(
            "output",
            (b"a\x1b[1mb\x1b]0;P\x07\n\xff\r\n",),
            of_file("output.log", lambda at: output_tail(at / "output.log")),
        ),
    ]


def _fields(stop: Stop) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        stop.write(Path(directory) / "stop")
        found: dict[str, object] = json.loads((Path(directory) / "stop").read_text())
        return found


def _readers_of_projects() -> list[Reader]:
    project = b'[tool.rlharness]\nisolate = "file"\n[tool.rlharness.needs]\n"tests/gpu/**" = 2\n[tool.rlharness.gate]\n'
    return [
        Reader("pyproject.toml", (project,), of_file("pyproject.toml", load_config), (UsageError,)),
        Reader(
            "a library",
            (_library(64, 120), _library(1 << 63, 120), _library(64, 1 << 63)),
            of_file("a.so", lambda at: identify(at / "a.so")),
        ),
    ]


def _library(table_offset: int, notes_offset: int) -> bytes:
    """An ELF file with one program header, of its notes, and in these a build id; offsets as they stand there."""
    identity = b"\x7fELF\x02\x01\x01" + bytes(25)
    head = identity + table_offset.to_bytes(8, "little") + bytes(14) + struct.pack("<HH", 56, 1) + bytes(6)
    notes = struct.pack("<III4s", 4, 20, 3, b"GNU") + bytes(range(20))
    return head + struct.pack("<IIQQQQQQ", 4, 0, notes_offset, 0, 0, len(notes), len(notes), 4) + notes
