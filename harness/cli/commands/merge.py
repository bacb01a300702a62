"""`rlharness merge` from arguments to exit code."""

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import put
from harness.process.invocation import Invocation, wants_colour
from harness.render.console import is_outermost_on_github, show
from harness.render.junit import junit_text
from harness.render.run_json import merge_json
from harness.render.run_reporters import LateReporter
from harness.render.run_text import SummaryReporter, merge_lines
from harness.runner.records.merging import MergedRun, merge_runs
from harness.runner.records.recorded_run import read_recorded_run


def merge_recorded(invocation: Invocation, given: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness merge`; raises UsageError for runs that cannot be merged."""
    merged = merge_runs([read_recorded_run(Path(run)) for run in given["runs"]])
    if given["json"]:
        show(json.dumps(merge_json(merged)))
    else:
        show(_text(merged, colour=wants_colour(given["color"], invocation)))
    if is_outermost_on_github(invocation.environ):
        from harness.render.run_github import summarize_merge

        summarize_merge(merged.state, merged.finished, invocation.environ)
    if given["junit_file"] is not None:  # last: the outcomes are shown where this file cannot be written
        _write_junit(merged, given["junit_file"])
    return merged.exit_code


def _text(merged: MergedRun, *, colour: bool) -> str:
    """Return the output for a person, without characters that standard output cannot encode."""
    encoding = sys.stdout.encoding or "utf-8"
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    put(stream, "".join(f"{line}\n" for line in merge_lines(merged)))
    SummaryReporter(stream, colour=colour).on_event(merged.finished, merged.state)
    stream.seek(0)
    return stream.read().rstrip("\n")


class _Unwritten(UsageError):
    """JUnit XML that was not written, after the result was shown."""

    in_record = True

    def __init__(self, path: Path, error: OSError | UsageError) -> None:
        why = (
            error.what if isinstance(error, UsageError) else f"JUnit XML cannot be written to {path}: {error.strerror}"
        )
        super().__init__(
            why, legal="a file that can be written", remedy="choose another file, or make room or permission there"
        )


def _write_junit(merged: MergedRun, path: Path) -> None:
    try:
        LateReporter(path, "JUnit XML", junit_text).on_event(merged.finished, merged.state)
    except (OSError, UsageError) as error:
        raise _Unwritten(path, error) from error
