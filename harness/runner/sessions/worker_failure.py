"""Failures of workers after their last file, which belong to no test: those of session-scoped fixtures and hooks."""

from contextlib import suppress
from pathlib import Path

from harness.bits.files import read_text
from harness.bits.text import one_line
from harness.process.program_output import output_tail
from harness.process.supervisor_client import ProcessEnd
from harness.runner.outcomes import signal_name
from harness.runner.sessions.plugin_names import WORKER_ERROR
from harness.runner.units import WorkerFailure

MAX_CHARS = 100_000


def worker_failure(name: str, directory: str, how: str) -> WorkerFailure:
    """Return the failure of the worker with this directory; `how` is the reason if it recorded no error."""
    log = Path(directory, "output.log")
    text = ""
    with suppress(OSError):
        text = read_text(Path(directory, WORKER_ERROR), errors="replace")[-MAX_CHARS:].rstrip()
    reason = next((line.strip() for line in reversed(text.splitlines()) if line[:1] not in (" ", "")), how)
    return WorkerFailure(name, str(log), one_line(reason, 1000), text or "\n".join(output_tail(log)))


def ending(end: ProcessEnd) -> str:
    """Return how the process of a worker ended, as a reason."""
    how = f"exited with {end.exit_code}" if end.signal is None else f"died of {signal_name(end.signal)}"
    return f"its process {how} after its last file"
