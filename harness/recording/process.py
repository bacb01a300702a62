"""One process's part in a recording: which rank it is, its log, its report, its end.

The log is opened with the first step: a process that never ends a step leaves none. A failure here ends the
recording and is reported once; the program continues.
"""

import atexit
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.bits.errors import TraceError
from harness.bits.files import write_replacing
from harness.bits.redaction import redact_argv, redact_fields
from harness.recording.notices import say
from harness.recording.operations import OpLog, OpMode
from harness.recording.program_state import gpus_in_use
from harness.recording.recorder import Held, Kept, Recorder, RecorderCallback
from harness.recording.run_spec import PROCESSES, Report, RunSpec
from harness.trace.fingerprint import fingerprint
from harness.trace.format import UNFINISHED, RecordedValue, log_name
from harness.trace.manifest import Fingerprint, Manifest, with_gpus
from harness.trace.values import Float
from harness.trace.writer import TraceWriter

MAX_RANKS = 4096
ROOM_BYTES = 4096
"""Spare bytes of a report: on a full disk, a new report overwrites the old one in its room."""
MAX_PROBLEM_CHARS = 500
"""Of what goes into that room: JSON spells a character with six bytes at most."""
FIXED_TEXT = "the order of sets and dictionaries of text follows from this"


class Place(NamedTuple):
    """The number of a process among those that record together."""

    rank: int
    num_ranks: int
    continues: bool = False
    """Whether it continues the log of a process that has died."""


class ProcessLog:
    """The sink of one process's recorder."""

    def __init__(self, orders: RunSpec) -> None:
        self.orders = orders
        self._directory = Path(orders.directory)
        self._writer: TraceWriter | None = None
        self._early: dict[str, Float] = {}
        self._manifest: Manifest | None = None
        self._report = first_report(orders)
        self._pid = os.getpid()
        self._is_forked = False
        self.callbacks: Sequence[RecorderCallback] = ()
        """Called for the values of the curve."""
        self.content: Mapping[str, str] = {}
        """Digests of what the configuration names."""
        self.recorder: Recorder | None = None
        """Whose steps these are: asked at the end whether it is in the middle of one."""
        self.place: Place | None = None
        """The place that the program gives this process; None: that of torch.distributed, or of the launcher."""
        self.before_close: Callable[[], None] = lambda: None
        """Called when the process ends; it may still give up."""
        self.before_values: Callable[[], None] = lambda: None
        """Called before values of the curve are taken: whose step has to have ended."""
        self.is_cut = False
        """Whether a callback has ended the program in the middle of a step."""
        self._note()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._leave_to_parent)

    @property
    def rank(self) -> int | None:
        """Whose log this process writes; None before its first step."""
        return self._report.rank

    @property
    def num_ranks(self) -> int:
        """How many processes record together."""
        return self._place().num_ranks

    @property
    def is_recording(self) -> bool:
        """Whether there is still something to be recorded for."""
        return not self._report.problem and not self._report.is_closed

    def append(self, step: int, recorded_values: Sequence[RecordedValue], tensors: Sequence[Kept] = ()) -> None:
        """One step; opens the log with the first."""
        if not self.is_recording:
            return
        if self._writer is None:
            try:
                self._writer = self._open()
            except TraceError as error:
                self.give_up(error.what)
                return
            self._writer.log_values(self._early)
        if not self._report.gpus:
            self._note_gpus()
        num_before = self._writer.num_steps
        self._writer.append(step, recorded_values, tensors=tensors)
        if self._writer.ended_by:  # reported at once: nobody knows how this process will end
            self._note(problem=self._writer.ended_by)
            return
        self._report = replace(self._report, num_steps=self._report.num_steps + self._writer.num_steps - num_before)

    def repeat(self) -> None:
        """Take steps again that were recorded: those since the checkpoint from which the run starts again."""
        self._flush()
        if self.is_recording and self._writer is not None:
            self._writer.repeat()

    def log_values(self, values: Mapping[str, Float]) -> None:
        """Values of the curve, of the step that was appended last; before the first step they are the first's."""
        self.before_values()
        self._flush()
        if self._writer is None:
            self._early |= values
        elif values:
            self._writer.log_values(values)
        for callback in self.callbacks:
            callback.on_values(values)

    def keep_unfinished(self, step: Held | None) -> None:
        """Write what was recorded of a step in whose middle the program has ended: a trace below this one."""
        if not self.is_recording or step is None:
            return
        try:
            self._writer = self._writer or self._open()
            assert self._manifest is not None
            rank = self._report.rank or 0
            with TraceWriter(self._directory / UNFINISHED, self._manifest, rank=rank, say=say) as writer:
                writer.append(step.number, step.settled(), tensors=step.tensors)
        except TraceError as error:
            say(f"the recorded values of step {step.number} are lost: {error.what}")

    def note_metrics(self, names: Iterable[str]) -> None:
        """Patterns of the orders have found numbers for these names; reported at once, each name once."""
        if new := tuple(name for name in names if name not in self._report.metrics):
            self._note(metrics=(*self._report.metrics, *new))

    def note_skipped(self) -> None:
        """A GradScaler has left out a step."""
        self._report = replace(self._report, num_skipped=self._report.num_skipped + 1)

    def note_return(self) -> None:
        """The entry that this process called has returned; reported at once."""
        self._note(has_returned=True)

    def operations(self, step: int) -> OpMode:
        """What records the operations of a step of this process."""
        rank = self._place().rank if self.rank is None else self.rank
        return OpMode(OpLog(self._directory, rank=rank, step=step, say=say))

    def give_up(self, problem: str) -> None:
        """End the recording before the program's end, and say why."""
        if self.is_recording:
            say(f"recording ended, the program continues: {problem}")
            if self._writer is not None:
                self._writer.close(complete=False)
            self._note(problem=problem)

    def close(self) -> None:
        """End the recording in order; once is enough."""
        if os.getpid() != self._pid or not self.is_recording:
            return
        if self._is_forked and self._writer is None:  # a worker that has nothing to say
            return
        self.before_close()
        self._flush()
        if not self.is_recording:
            return
        unfinished = None if self.recorder is None else self.recorder.unfinished_step
        error = getattr(sys, "last_value", None)  # no other step was cut: an evaluation may follow the last one
        if self.recorder is not None and unfinished is not None and (self.is_cut or error is not None):
            self.keep_unfinished(self.recorder.break_off(error))
        if self._writer is not None:
            self._note_gpus()
            self._writer.close()
            if self._writer.ended_by != "closed":
                self._report = replace(self._report, problem=self._writer.ended_by)
        self._note(is_closed=True, unfinished_step=unfinished, sources=sources())

    def _flush(self) -> None:
        """Write the step that the recorder still holds."""
        if self.recorder is not None:
            self.recorder.flush()

    def _note_gpus(self) -> None:
        """Report the GPUs that the program uses by now, if it uses others than were reported."""
        try:
            found = tuple(sorted({*self._report.gpus, *gpus_in_use()}))
        except RuntimeError:  # a GPU that does not answer: the program will meet it itself
            return
        if found == self._report.gpus or self._manifest is None or self._writer is None:
            return
        self._note(gpus=found)
        self._manifest = with_gpus(self._manifest, found)
        self._writer.replace_manifest(self._manifest)

    def _note(self, **fields: Any) -> None:
        """Report what has become known of this process, at once; what cannot be written is no reason to end."""
        self._report = replace(self._report, **fields)
        with suppress(OSError):
            write_report(self._directory / PROCESSES, self._report)

    def _place(self) -> Place:
        return self.place or Place(*rank_and_world_size(os.environ))

    def _open(self) -> TraceWriter:
        if self.orders.level_problem:
            raise TraceError(self.orders.level_problem)
        rank, world_size, _ = self._place()
        is_given = self.place is not None or given_rank(os.environ) is not None
        continues = self.place is not None and self.place.continues
        for number in (rank, *range(world_size, MAX_RANKS)):
            if (self._directory / log_name(number)).exists() and not continues:
                continue
            try:
                self._manifest = self._made_manifest(number, world_size)
                writer = TraceWriter(self._directory, self._manifest, rank=number, say=say, continues=continues)
            except TraceError:
                if not (self._directory / log_name(number)).exists():
                    raise
                continue  # another process was faster
            cluster = "" if self._is_forked else cluster_of_worker()
            self._note(rank=number, has_rank=is_given and number == rank, cluster=cluster)
            if (util := sys.modules.get("multiprocessing.util")) is not None:
                util.Finalize(None, self.close, exitpriority=0)  # what multiprocessing starts ends without atexit
            return writer
        raise TraceError(f"more than {MAX_RANKS} processes record into {self._directory}")

    def _made_manifest(self, rank: int, world_size: int) -> Manifest:
        if rank:
            found = Fingerprint(identity=redact_fields(self.orders.identity))
        else:
            found = fingerprint(
                self.orders.identity,
                environ=os.environ,
                modules=list(sys.modules),
                checkout=Path.cwd(),
                world_size=world_size,
            )
            told = redact_fields(self.orders.perturbation)
            found = replace(found, content=self.content, perturbation={**found.perturbation, **told})
        return Manifest(found, self.orders.argv, world_size, self.orders.level)

    def _leave_to_parent(self) -> None:
        """In a forked child: the log is the parent's. The child may have one of its own, if it ends a step."""
        self._writer, self._early, self._is_forked = None, {}, True
        if self.recorder is not None:
            self.recorder.forget()
        self._pid = os.getpid()
        self._report = first_report(self.orders)


def first_report(orders: RunSpec) -> Report:
    """What a process says before its first step."""
    return Report(
        pid=os.getpid(),
        argv=tuple(redact_argv(sys.argv)),
        python=sys.executable,
        level_env={name: os.environ.get(name) for name in orders.level_env},
        string_hash=f"{hash(FIXED_TEXT):x}",
    )


def write_report(directory: Path, report: Report) -> None:
    """Write a report as a whole, with spare room; on a full disk, overwrite the previous one in its room.

    OSError where there is no report yet, or it cannot be written to.
    """
    path = directory / f"{report.pid}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_replacing(path, report.to_text().encode() + b" " * ROOM_BYTES)
    except OSError:
        short = replace(report, problem=report.problem[:MAX_PROBLEM_CHARS])
        with path.open("r+b", buffering=0) as file:
            file.write(short.to_text().encode().ljust(path.stat().st_size))


def cluster_of_worker() -> str:
    """What has started this process as a worker of its own, and ends it when it is no longer needed; empty for none."""
    ray = sys.modules.get("ray")
    worker = getattr(sys.modules.get("ray._private.worker"), "global_worker", None)
    is_worker = ray is not None and worker is not None and worker.mode == ray.WORKER_MODE
    return "Ray" if is_worker else ""


def rank_and_world_size(environ: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) as torch.distributed has them, else as the launcher says, else (0, 1)."""
    return given_rank(environ) or (0, 1)


def given_rank(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """(rank, world size) that torch.distributed or the launcher has given this process."""
    torch_distributed = sys.modules.get("torch.distributed")
    if torch_distributed is not None and torch_distributed.is_available() and torch_distributed.is_initialized():
        return int(torch_distributed.get_rank()), int(torch_distributed.get_world_size())
    rank, world_size = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if rank.isdecimal() and world_size.isdecimal() and int(rank) < int(world_size):
        return int(rank), int(world_size)
    return None


def sources() -> tuple[str, ...]:
    """Directories from which this process has imported modules, without installed packages and the standard library."""
    library = sysconfig.get_path("stdlib")
    found = set()
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or library)
        is_installed = {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(library)
        is_ours = path.is_relative_to(Path(__file__).parents[1])
        if path.is_absolute() and not is_installed and not is_ours:  # torch.ops has a name of no file
            depth = name.count(".") + (path.name == "__init__.py")
            found.add(str(path.parents[min(depth, len(path.parents) - 1)]))
    return tuple(sorted(found))
