"""The writer of one rank: a frame a step, whole or absent.

A frame is handed to the kernel in one piece before `append` returns, so kill -9 costs at most the step at hand. What
cannot be written ends the recording, never the program: it is said once, the trace stays incomplete, and whatever is
appended after that is dropped.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.bits.digests import ADDITIVE
from harness.bits.errors import TraceError
from harness.bits.files import open_for_writing, write_replacing
from harness.trace import format as fmt
from harness.trace.manifest import Manifest, manifest_text
from harness.trace.reader import read_log
from harness.trace.values import Float

_REFUSED = (FileExistsError, PermissionError, NotADirectoryError, FileNotFoundError)


class TraceWriter:
    """Writes what one rank records; that of rank 0 also the manifest and the curve.

    `manifest` is that of the whole trace, for every rank: its identity begins the chain. `say` is given one line when
    the recording ends early. `completes_manifest` is False if a parent process observes how the program ends, and
    replaces the manifest then. `continues` continues the log of a rank but 0 whose process has died, if there is
    one. One thread at a time. TraceError where the directory cannot be written to, or holds a trace of this rank
    already.
    """

    def __init__(
        self,
        directory: Path,
        manifest: Manifest,
        *,
        rank: int = 0,
        say: Callable[[str], None],
        completes_manifest: bool = True,
        continues: bool = False,
    ) -> None:
        self.directory = directory
        self.rank = rank
        self.ended_by = ""
        """Why nothing is recorded any more; empty while it is."""
        self._manifest = manifest
        self._completes_manifest = completes_manifest
        self._say = say
        self._chain = fmt.chain_start(manifest.fingerprint.identity)
        self._last_step = -1
        self._layout: fmt.Layout | None = None
        """Of the last step."""
        self.num_steps = 0
        """Number of steps in the log."""
        self._files: dict[str, AppendedFile] = {}
        self._values: dict[str, Float] = {}
        self._line: fmt.CurvePoint | None = None
        """Of the step appended last, not written yet; `values` of it are these."""
        self._repeated: Mapping[int, fmt.StepHead] = {}
        """Steps that may come again."""
        self._is_repeating = False
        if continues and (directory / fmt.log_name(rank)).exists():
            self._continue(directory / fmt.log_name(rank))
            return
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._files["log"] = AppendedFile(directory / fmt.log_name(rank))
            if rank == 0:
                self._files["curve"] = AppendedFile(directory / fmt.CURVE)
                if (directory / fmt.MANIFEST).exists():
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
                write_manifest(directory, manifest)
            self._files["log"].append(fmt.HEADER)
        except _REFUSED as error:
            self._close_files()
            for file in self._files.values():
                file.path.unlink()
            raise TraceError(
                f"a trace cannot be written to {directory}: {error.strerror}",
                legal="a new or empty directory",
                remedy="choose another directory, or empty this one",
            ) from None
        except OSError as error:
            self._end(error)

    def append(
        self,
        step: int,
        recorded_values: Sequence[fmt.RecordedValue],
        values: Mapping[str, Float] | None = None,
        tensors: Sequence[fmt.Kept] = (),
    ) -> bytes | None:
        """Record one step, the values in the order in which they came about; `values` are those of the curve.

        `tensors` are kept beside the log, before the step is: a step that is there has all of them. Returns C_k, or
        None where nothing is recorded any more. Steps only ever grow. A repeated key, an unknown phase or a digest of
        another length ends the recording, as a full disk does.
        """
        if self.ended_by:
            return None
        try:
            layout = fmt.layout_of(recorded_values)
            root = layout.root(step, [each.digest for each in recorded_values])
            self._is_repeating = step in self._repeated
            if self._is_repeating:
                return self._compared(step, root)
            if step <= self._last_step:
                found = f"step {step} was recorded after step {self._last_step}"
                raise TraceError(found, legal="increasing step numbers")
            if layout is not self._layout:
                _check(recorded_values)
            chain = fmt.next_chain(self._chain, root)
            payload = fmt.frame(fmt.step_payload(step, root, chain, recorded_values))
            if tensors:
                (self.directory / fmt.TENSORS).mkdir(exist_ok=True)
                fmt.write_tensors(self.directory / fmt.TENSORS / fmt.tensors_name(self.rank, step), tensors)
            self._files["log"].append(payload)
            self._chain, self._last_step, self.num_steps, self._layout = chain, step, self.num_steps + 1, layout
            self._write_line()
            self._values |= values or {}
            self._line = fmt.CurvePoint(step, self._values, chain.hex())
        except (OSError, TraceError) as error:
            self._end(error)
            return None
        return chain

    def log_values(self, values: Mapping[str, Float]) -> None:
        """Add to the line of the curve of the step that was appended last; before the first step, to that of the first.

        A step's line is written when the next step is, or at the end, since programs log their losses after the step.
        Of two values of one name the later counts; what a program calls `step` or `chain` is left out, since lines
        have these. Ranks but 0 have no curve: there it does nothing.
        """
        if not self.ended_by and not self._is_repeating:
            self._values |= {name: value for name, value in values.items() if name not in fmt.TAKEN}

    def repeat(self) -> None:
        """Take steps again that are in the log: nothing is written of them, and other values end the recording."""
        if not self.ended_by:
            self._repeated = read_log(self.directory / fmt.log_name(self.rank)).heads

    def replace_manifest(self, manifest: Manifest) -> None:
        """Write what has become known of the program since the trace was opened; its identity has to be the same.

        Ranks but 0 have no manifest: there it does nothing.
        """
        self._manifest = manifest
        if self.rank == 0 and not self.ended_by:
            try:
                write_manifest(self.directory, manifest)
            except OSError as error:
                self._end(error)

    def close(self, *, complete: bool = True) -> None:
        """End the recording; `complete` where the program has ended in order. Once is enough."""
        if not self.ended_by:
            try:
                self._write_line()
                if complete:
                    self._files["log"].append(fmt.frame(fmt.done_payload(self.num_steps)))
                    if self.rank == 0 and self._completes_manifest:
                        write_manifest(self.directory, replace(self._manifest, complete=True))
                self.ended_by = "closed"
            except (OSError, TraceError) as error:
                self._end(error)
        self._close_files()

    def _write_line(self) -> None:
        """Write the line of the step before, once."""
        line, self._line = self._line, None
        if line is None:
            return
        self._values = {}
        if "curve" in self._files:
            self._files["curve"].append(fmt.curve_line(line).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(complete=kind is None)

    def _continue(self, path: Path) -> None:
        """Open the log that a process has left, cut after its last whole step."""
        log = read_log(path)
        end = path.stat().st_size - log.num_skipped_bytes
        if log.is_closed:
            end -= len(fmt.frame(fmt.done_payload(len(log.heads))))
        self._files["log"] = AppendedFile(path, end)
        self._repeated, self.num_steps = log.heads, len(log.heads)
        for step, head in log.heads.items():
            self._last_step, self._chain = step, head.chain

    def _compared(self, step: int, root: bytes) -> bytes:
        """Return the chain of a step that comes again; TraceError if it has other values than it had."""
        if self._repeated[step].root != root:
            raise TraceError(f"step {step} was run again after a restart, and has other values than before")
        return self._repeated[step].chain

    def _end(self, error: OSError | TraceError) -> None:
        self.ended_by = (error.strerror if isinstance(error, OSError) else str(error)) or "unknown"
        with suppress(OSError, TraceError):  # what ended the recording is told, whatever becomes of the curve
            self._write_line()
        self._close_files()
        steps = "step" if self.num_steps == 1 else "steps"
        self._say(
            f"recording ended after {self.num_steps} {steps}; the program continues: {self.ended_by}"
            f" ({self.directory / fmt.log_name(self.rank)})"
        )

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()


def _check(recorded_values: Sequence[fmt.RecordedValue]) -> None:
    if unknown := {each.phase for each in recorded_values} - set(fmt.PHASES):
        raise TraceError(f"the phase {min(unknown)!r} does not exist", legal=", ".join(fmt.PHASES))
    for each in recorded_values:
        if each.scope is fmt.Scope.SHARD and each.algorithm not in ADDITIVE:
            raise TraceError(f"a shard of {each.name} has a digest {each.algorithm}", legal=", ".join(ADDITIVE))


def close_log(path: Path) -> int:
    """Close a log whose process was ended from outside after its last step; returns how many steps it has.

    Nothing is done to a log that is closed. TraceError for one that is torn: it stays as it is.
    """
    try:
        log = read_log(path)
        if log.num_skipped_bytes:
            raise TraceError(
                f"{path} is torn: {log.num_skipped_bytes:,} bytes follow its last complete frame",
                legal="a log with only complete frames",
            )
        if not log.is_closed:
            with open_for_writing(path, appends=True) as file:
                file.write(fmt.frame(fmt.done_payload(len(log.heads))))
    except OSError as error:
        raise TraceError(f"{path} cannot be closed: {error.strerror}") from None
    return len(log.heads)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest of a trace, replacing an existing one; OSError if it cannot be written."""
    write_replacing(directory / fmt.MANIFEST, manifest_text(manifest))


class AppendedFile:
    """A file that did not exist before, and only grows; what does not fit as a whole is taken back."""

    def __init__(self, path: Path, size_bytes: int | None = None) -> None:
        """Create a file; with `size_bytes` go on with one that exists, cut to that size."""
        self.path = path
        new = os.O_CREAT | os.O_EXCL if size_bytes is None else os.O_NOFOLLOW
        self._fd = os.open(path, os.O_WRONLY | new | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._size_bytes = size_bytes or 0
        if size_bytes is not None:
            os.ftruncate(self._fd, size_bytes)

    def append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            with suppress(OSError):  # readers skip what is torn: this only keeps it from being seen
                os.ftruncate(self._fd, self._size_bytes)
            raise
        self._size_bytes += len(data)

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1
