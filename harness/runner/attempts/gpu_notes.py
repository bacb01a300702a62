"""Findings on the GPUs of an attempt that explain its failure: the driver's errors, other users, unread names."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.bits.files import open_regular
from harness.machine.gpu_health import FATAL_XIDS, describe_xid
from harness.machine.inventory import Gpu
from harness.runner.report_file import TestReport
from harness.runner.units import UnitResult

MAX_LOG_BYTES = 1 << 20
"""Of the end of an output."""
NO_NUMBER = "invalid literal for int() with base 10: '{}-"
"""The error of a program that takes the UUIDs in CUDA_VISIBLE_DEVICES for numbers."""


def with_xids(result: UnitResult, xids: Mapping[str, Sequence[int]]) -> UnitResult:
    """Return a failed result with the errors that the driver reported of its GPUs meanwhile; any other as it is."""
    if not xids or not result.is_failure:
        return result
    told = "; ".join(f"{gpu_id}: {', '.join(map(describe_xid, seen))}" for gpu_id, seen in xids.items())
    return _with_reason(result, f"the driver reported meanwhile {told}")


def broken_by(xids: Mapping[str, Sequence[int]]) -> dict[str, str]:
    """Return the GPUs that run no test after these errors, with the reasons."""
    fatal = {gpu_id: [describe_xid(xid) for xid in seen if xid in FATAL_XIDS] for gpu_id, seen in xids.items()}
    return {gpu_id: f"the driver reported {', '.join(told)}" for gpu_id, told in fatal.items() if told}


def with_others(result: UnitResult, held: Mapping[str, str]) -> UnitResult:
    """Return a failed result with what held its GPUs after its own processes had gone; any other as it is."""
    if not held or not result.is_failure:
        return result
    told = "; ".join(f"{gpu_id}: {why}" for gpu_id, why in held.items())
    return _with_reason(result, f"something else may have used its GPUs meanwhile ({told})")


def unread_names(result: UnitResult, report: TestReport, gpus: Sequence[Gpu]) -> str:
    """Return a note where a failed attempt could not read the names of its GPUs; empty where nothing says so."""
    if not result.is_failure or not gpus:
        return ""
    kind = "MIG" if gpus[0].is_mig else "GPU"
    if not any(NO_NUMBER.format(kind) in text for text in (*_texts(report), _end_of(result.directory))):
        return ""
    why = f"{result.unit.path}: a library reads numbers in CUDA_VISIBLE_DEVICES, where a lease has UUIDs"
    if kind == "MIG":
        return f"{why}; a MIG instance has no number: use a GPU that is not split, or a later version of the library"
    return f"{why}: run it with --device-ids number"


def _texts(report: TestReport) -> tuple[str, ...]:
    return (*(end.text for end in report.ends.values()), *(text for _, text in report.collect_errors))


def _end_of(directory: str) -> str:
    try:
        with open_regular(Path(directory, "output.log")) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_LOG_BYTES))
            return file.read(MAX_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _with_reason(result: UnitResult, why: str) -> UnitResult:
    return replace(result, reason=f"{result.reason}; {why}" if result.reason else why)
