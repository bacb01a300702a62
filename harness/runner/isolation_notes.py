"""Notes on isolation as codes with their sentences and values."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.bits.findings import FindingCode


class IsolationCode(FindingCode):
    """Codes of notes on isolation."""

    TESTS_NOT_FORKED = "tests_not_forked", "the tests of {files} ran in one process{each}: {why}"
    NOT_FORKED = "not_forked", "{processes} an interpreter of {whose} own: {why}"


class NotForked(FindingCode):
    """Reasons why something is not forked."""

    THREADS = "threads", "{subject} starts threads when it is imported{more}"
    PLUGIN_THREADS = "plugin_threads", "the plugin {detail} starts threads; without it: rlharness run -- -p no:{detail}"
    SUITE_THREADS = "suite_threads", "the suite starts threads before its files are imported{more}"
    CUDA = "cuda", "{subject} initialises CUDA when it is imported{more}"
    PROCESSES = "processes", "{subject} starts a process when it is imported{more}"
    SOCKETS = "sockets", "{subject} opens sockets when it is imported{more}"
    FILES = "files", "{subject} holds a file open for writing when it is imported{more}"
    CWD = "cwd", "{subject} changes the working directory when it is imported{more}"
    REPLACED = "replaced", "{subject} replaces system functions when it is imported{more}"
    READS = "reads", "{reader} reads {name} when it is imported"
    NO_FORK = "no_fork", "the session could not fork{more}"
    LOST = "lost", "the session was lost{more}"


@dataclass(frozen=True, slots=True)
class IsolationNote:
    """A note on isolation."""

    code: IsolationCode
    path: str = ""
    """The file, as it was given to pytest; empty for NOT_FORKED, and for one note on several files."""
    reason: NotForked | None = None
    """Why nothing was forked; None for changes of a file."""
    detail: str = ""
    """Value that belongs to the code or the reason: variables, a directory, a process, an error."""
    num_processes: int = 0
    """Processes, or files without a path, that were not forked; 0 for all of the run, and for codes of files."""


OF_ALL_FILES = (NotForked.PLUGIN_THREADS, NotForked.SUITE_THREADS)
"""Reasons that no file has by itself."""


def merge_notes(notes: Iterable[IsolationNote]) -> tuple[IsolationNote, ...]:
    """Return the notes without repetitions, with one for all files that have a reason of OF_ALL_FILES in common."""
    paths: dict[IsolationNote, set[str]] = {}
    for note in notes:
        paths.setdefault(replace(note, path="") if note.reason in OF_ALL_FILES else note, set()).add(note.path)
    return tuple(
        replace(note, num_processes=len(files)) if note.reason in OF_ALL_FILES else note
        for note, files in paths.items()
    )
