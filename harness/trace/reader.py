"""Traces as they are found: of several ranks, cut at any byte of any file.

A log is read once, frame by frame, and only the heads of its steps are kept; a step is opened when it is asked for.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from harness.bits.digests import RAW
from harness.bits.errors import TraceError
from harness.bits.files import MAX_JSON_BYTES, open_regular, read_regular
from harness.trace import format as fmt
from harness.trace.manifest import Manifest, parse_manifest, refuse_newer

MAX_TEXT_BYTES = 2**30
"""Limit on a curve; that of a million steps has about 300 MB."""
MAX_ABSENT = 64
"""Missing logs that are named; the rest are counted."""
MAX_NAMES = 3
"""Maximum number of traces that an error lists for the directory above them."""


@dataclass(frozen=True, slots=True)
class RankLog:
    """One rank's log, up to its last complete frame."""

    path: Path
    heads: Mapping[int, fmt.StepHead]
    """By step, in the order in which they were written, which is that of the steps."""
    places: Mapping[int, fmt.FramePosition] = field(repr=False)
    is_closed: bool
    """Whether it ends as a log that was closed in order, and has as many steps as it says."""
    num_skipped_bytes: int
    """Number of bytes after the last complete frame."""
    shift: int = 0
    """By how much its steps have larger numbers than in its files: comparing a resumed run moves them."""
    changed: Mapping[int, fmt.Columns] = field(default_factory=dict, repr=False)
    """Values of steps that are compared in place of those in the file."""

    @property
    def number(self) -> int:
        """The rank in the names of its files; comparing may give a process without a rank another."""
        found = _rank(self.path)
        assert found is not None
        return found

    def columns(self, step: int) -> fmt.Columns:
        """Return the values of a step, not decoded; KeyError for a step that it does not have.

        TraceError if the file has changed.
        """
        if step in self.changed:
            return self.changed[step]
        place = self.places[step]
        try:
            with open_regular(self.path, follows_links=True) as file:
                return fmt.read_columns(file, place, self.heads[step].num_values)
        except OSError as error:
            raise TraceError(f"{self.path} cannot be read: {error.strerror}") from None


@dataclass(frozen=True)
class Trace:
    """A trace, as far as it can be read."""

    directory: Path
    manifest: Manifest | None
    """None where it is missing or cut."""
    ranks: Mapping[int, RankLog]
    curve: tuple[fmt.CurvePoint, ...]
    """Points of the curve, up to the first damaged line."""
    curve_ends_at: int | None = None
    """The line, from 1, from which on it was not read, being cut or none of a curve; None where all of it was."""
    damaged: set[tuple[int, int]] = field(default_factory=set, compare=False, repr=False)
    """(step, rank) of kept tensors that were asked for and are damaged."""
    _opened: dict[tuple[int, int], fmt.Columns] = field(default_factory=dict, compare=False, repr=False)
    """What was opened last: a step of a million values is a hundred megabytes, and is asked for several times."""

    @cached_property
    def gaps(self) -> tuple[str, ...]:
        """Why it is incomplete; nothing where it is not."""
        found = []
        if self.manifest is None:
            found.append("manifest.json is missing or cut")
        else:
            if not self.manifest.complete:
                found.append("its program did not exit normally")
            found += _absent(self.manifest.world_size, self.ranks.keys())
        for rank, log in self.ranks.items():
            if log.num_skipped_bytes:
                found.append(f"{fmt.log_name(rank)} is torn: its last {log.num_skipped_bytes:,} bytes were skipped")
            elif not log.is_closed:
                found.append(f"{fmt.log_name(rank)} was not closed")
        return tuple(found)

    @property
    def unranked(self) -> tuple[int, ...]:
        """The ranks that are only the order in which processes without a rank ended their first step."""
        return () if self.manifest is None else self.manifest.unranked

    @property
    def damages(self) -> tuple[str, ...]:
        """Damage that its steps do not depend on, as far as it was read."""
        found = []
        if self.manifest is not None and self.manifest.complete and len(self.ranks) > self.manifest.world_size:
            world_size = self.manifest.world_size
            ranks = f"{world_size} rank" + ("s" if world_size > 1 else "")
            found.append(f"{fmt.log_name(max(self.ranks))} exists, but its manifest counts {ranks}")
        if self.curve_ends_at is not None:
            found.append(f"{fmt.CURVE} is damaged: it was read up to line {self.curve_ends_at}")
        if self.damaged:
            (step, rank), *others = sorted(self.damaged)
            more = f" and {len(others)} more" if others else ""
            found.append(f"the kept tensors of step {step}, rank {rank},{more} are damaged: compared by digest only")
        return tuple(found)

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The complete steps: no rank's log ends before them without having been closed."""
        open_ends = [max(log.heads, default=-1) for log in self.ranks.values() if not log.is_closed]
        absent = self.manifest is not None and len(self.ranks) < self.manifest.world_size
        end = -1 if absent else min(open_ends, default=None)
        found = {step for log in self.ranks.values() for step in log.heads}
        return tuple(sorted(step for step in found if end is None or step <= end))

    def tensor(self, step: int, rank: int, recorded_value: fmt.RecordedValue) -> bytes | None:
        """Return the bytes of a value that was kept in a file, or in the digest itself; None if the trace has neither.

        Damaged bytes give None too, and `damages` reports them. TraceError if the file cannot be read.
        """
        if recorded_value.algorithm == RAW:
            return fmt.raw_value(recorded_value)
        number, shift = (self.ranks[rank].number, self.ranks[rank].shift) if rank in self.ranks else (rank, 0)
        path = self.directory / fmt.TENSORS / fmt.tensors_name(number, step - shift)
        try:
            return fmt.read_digested(path, recorded_value)
        except fmt.DamagedTensor:
            if (
                recorded_value in self.columns(step, rank).values()
            ):  # else it is another rank's, and this one has it otherwise
                self.damaged.add((step, rank))
            return None
        except OSError as error:
            raise TraceError(f"{path} cannot be read: {error.strerror}") from None

    def columns(self, step: int, rank: int) -> fmt.Columns:
        """Return the values of one rank's step, not decoded; KeyError for one that it does not have.

        TraceError if the file has changed.
        """
        if (step, rank) not in self._opened:
            self._opened.clear()
            self._opened[step, rank] = self.ranks[rank].columns(step)
        return self._opened[step, rank]

    def logs(self, step: int) -> Mapping[int, RankLog]:
        """The logs that have this step, by rank."""
        return self._logs.get(step, {})

    @cached_property
    def _logs(self) -> Mapping[int, Mapping[int, RankLog]]:
        """The same for every step: of ten thousand ranks, each may have a step of its own."""
        found: dict[int, dict[int, RankLog]] = {}
        for rank, log in self.ranks.items():
            for step in log.heads:
                found.setdefault(step, {})[rank] = log
        return found


def _absent(world_size: int, ranks: Collection[int]) -> Iterator[str]:
    """The first logs that are missing, and the number of the rest: a manifest may claim any world size."""
    absent = (rank for rank in range(world_size) if rank not in ranks)
    yield from (f"{fmt.log_name(rank)} is missing" for rank in islice(absent, MAX_ABSENT))
    if num_more := sum(1 for _ in absent):
        yield f"{num_more:,} more logs are missing"


def read_trace(directory: Path) -> Trace:
    """A trace from its directory.

    TraceError where there is none, where it cannot be read, or where its format is newer than FORMAT.
    """
    try:
        if directory.is_file():
            raise _no_trace(directory)
        text = _text(directory / fmt.MANIFEST, MAX_JSON_BYTES)
        manifest = None if text is None else _manifest(directory / fmt.MANIFEST, text)
        paths = {rank: path for path in directory.glob("rank-*.log") if (rank := _rank(path)) is not None}
        if text is None and not paths:
            raise _no_trace(directory)
        logs = {rank: read_log(paths[rank]) for rank in sorted(paths)}
        curve = _text(directory / fmt.CURVE, MAX_TEXT_BYTES) or ""
        points = tuple(fmt.parse_curve(curve))
        return Trace(directory, manifest, logs, points, fmt.bad_line(curve, len(points)))
    except OSError as error:
        raise TraceError(f"{error.filename} cannot be read: {error.strerror}") from None


def _no_trace(path: Path) -> TraceError:
    """The error of a path that is no trace, with the traces that are beside or below it."""
    what, remedy = f"no trace in {path}", "pass the directory that was given to --out"
    if path.is_file():
        what = f"{path} is a file"
        is_of_trace = any((path.parent / name).is_file() for name in (fmt.MANIFEST, fmt.log_name(0)))
        remedy = f"name the directory: {path.parent}" if is_of_trace else remedy
    elif below := sorted(each.parent for each in path.glob(f"*/{fmt.MANIFEST}")):
        remedy = f"name one of the traces in it: {', '.join(map(str, below[:MAX_NAMES]))}"
    return TraceError(what, legal=f"a directory with {fmt.MANIFEST} and {fmt.log_name(0)}", remedy=remedy)


def read_log(path: Path) -> RankLog:
    """Read one rank's log; TraceError for another file, a newer format, or complete but malformed frames."""
    with open_regular(path, follows_links=True) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if not _checked_header(file.read(len(fmt.HEADER)), path):
            return RankLog(path, {}, {}, is_closed=False, num_skipped_bytes=size_bytes)
        try:
            heads, places, num_done, end = fmt.read_steps(file, size_bytes)
        except TraceError as error:
            raise _in(path, error) from None
    return RankLog(path, heads, places, num_done == len(heads), size_bytes - end)


def chain_breaks(log: RankLog, start: bytes | None) -> list[int]:
    """Return the steps whose chain does not follow from the one before; the first from `start`, if it is step 0."""
    wrong = []
    previous = start if log.heads and next(iter(log.heads)) == 0 else None
    for step, head in log.heads.items():
        if previous is not None and fmt.next_chain(previous, head.root) != head.chain:
            wrong.append(step)
        previous = head.chain
    return wrong


def _checked_header(header: bytes, path: Path) -> bool:
    """Return whether a header is complete; TraceError for another file's, or that of a newer format."""
    if not fmt.MAGIC.startswith(header[: len(fmt.MAGIC)]):
        raise TraceError(f"{path} is not a log of a trace", legal=f"a file that begins with {fmt.MAGIC.decode()}")
    if len(header) < len(fmt.HEADER):
        return False
    refuse_newer(int.from_bytes(header[len(fmt.MAGIC) :], "little"), "")
    return True


def _manifest(path: Path, text: str) -> Manifest | None:
    try:
        return parse_manifest(text)
    except TraceError as error:
        raise _in(path, error) from None


def _rank(path: Path) -> int | None:
    digits = path.name.removeprefix("rank-").removesuffix(".log")
    return int(digits) if digits.isdecimal() and path.name == fmt.log_name(int(digits)) else None


def _text(path: Path, max_bytes: int) -> str | None:
    """A file's text; None where there is none. What is no UTF-8 is replaced: it was cut in a character."""
    try:
        return read_regular(path, max_bytes=max_bytes, follows_links=True).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _in(path: Path, error: TraceError) -> TraceError:
    return TraceError(f"{path}: {error.what}", legal=error.legal, remedy=error.remedy)


# ----------------------------------------------------------------------------------------------------- parts of a trace
# Some steps or ranks of a trace, as a trace of their own: to compare what a run did again with what it had done.
#
#     recorded   0 1 2 3 4 5 6 7 8 9
#     again            3 4 5           ──▶ diff(excerpt(recorded, 3, 5), again)
#
# Nothing is copied: values and tensors are read from their original files.


def excerpt(trace: Trace, first: int, last: int) -> Trace:
    """Return the steps `first` to `last` of a trace, both included. It is complete if it has all of the last one.

    TraceError where it has none of them.
    """
    logs = {rank: _cut(log, first, last) for rank, log in trace.ranks.items()}
    if not any(log.heads for log in logs.values()):
        known = f"{trace.steps[0]} to {trace.steps[-1]}" if trace.steps else "none"
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        raise TraceError(f"{trace.directory} has no {steps}", legal=f"the steps that it has: {known}")
    manifest = trace.manifest
    if manifest is not None and last in trace.steps:
        manifest = replace(manifest, complete=True)
    curve = tuple(point for point in trace.curve if first <= point.step <= last)
    has_lost = not curve or curve[-1].step < last
    return Trace(trace.directory, manifest, logs, curve, trace.curve_ends_at if has_lost else None)


def common_ranks(a: Trace, b: Trace) -> tuple[Trace, Trace]:
    """Return two traces reduced to the ranks of both, if their world sizes are equal and logs are missing.

    Traces with shards are returned unchanged: only all ranks together show whether shards were cut differently.
    """
    if a.manifest is None or b.manifest is None or a.manifest.world_size != b.manifest.world_size:
        return a, b
    ranks = sorted(a.ranks.keys() & b.ranks.keys())
    if not ranks or min(len(a.ranks), len(b.ranks)) >= a.manifest.world_size:
        return a, b
    if any(head.num_shards for trace in (a, b) for log in trace.ranks.values() for head in log.heads.values()):
        return a, b
    one, other = (replace(manifest, world_size=len(ranks)) for manifest in (a.manifest, b.manifest))
    logs_a, logs_b = ({rank: trace.ranks[rank] for rank in ranks} for trace in (a, b))
    return replace(a, manifest=one, ranks=logs_a), replace(b, manifest=other, ranks=logs_b)


def _cut(log: RankLog, first: int, last: int) -> RankLog:
    """The same log with these steps only; what comes after them is no part of it, be it torn or not."""
    heads = {step: head for step, head in log.heads.items() if first <= step <= last}
    is_whole = last in heads
    return replace(
        log,
        heads=heads,
        is_closed=is_whole or log.is_closed,
        num_skipped_bytes=0 if is_whole else log.num_skipped_bytes,
    )
