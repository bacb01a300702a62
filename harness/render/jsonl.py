"""Every event as a JSON line in a file: the record of a run, whole up to the byte at which anything died."""

import os
from pathlib import Path

from harness.bits.errors import UsageError
from harness.render.late_file import open_as_named
from harness.runner.events import Event, to_json_line
from harness.runner.records.stats import RunState


class JsonlReporter:
    """Writes a line per event with one system call each, so that a reader of the growing file sees whole lines.

    Raises UsageError where the file cannot be made, OSError where it cannot be written later.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_as_named(path)
        except OSError as error:
            raise UsageError(
                f"events cannot be written to {path}: {error.strerror}",
                legal="a file that can be written",
                remedy="choose another file, or make room or permission there",
            ) from error

    def on_event(self, event: Event, state: RunState) -> None:
        """Append the event; text that is not Unicode is kept as JSON's own escapes."""
        line = to_json_line(event).encode("utf-8", "backslashreplace") + b"\n"
        left = memoryview(line)
        while left:  # a nearly full disk takes a part, and raises at the next
            left = left[os.write(self._file.fileno(), left) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()
