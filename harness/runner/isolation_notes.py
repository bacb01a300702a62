"""Notes on isolation as codes with their values; `harness.render.run_words` has the sentences."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class IsolationCode(StrEnum):
    """Codes of notes on isolation. Scripts rely on the values: none changes its meaning."""

    CHANGED_ENVIRONMENT = "changed_environment"  # a file left variables changed for later files of its worker
    CHANGED_CWD = "changed_cwd"
    LEFT_PROCESS = "left_process"
    LEFT_THREAD = "left_thread"  # not a daemon thread: the worker cannot exit before it ends
    TESTS_NOT_FORKED = "tests_not_forked"  # all tests of a file ran in one process, with --isolate test
    NOT_FORKED = "not_forked"  # processes that were started and not forked from the warm session


class NotForked(StrEnum):
    """Reasons why something is not forked."""

    THREADS = "threads"
    PLUGIN_THREADS = "plugin_threads"  # a plugin had started threads before the file was imported
    SUITE_THREADS = "suite_threads"  # a conftest file, or an unknown plugin, had
    CUDA = "cuda"
    PROCESSES = "processes"
    SOCKETS = "sockets"
    FILES = "files"
    CWD = "cwd"
    TEMPORARY_FILES = "temporary_files"
    REPLACED = "replaced"
    READS = "reads"  # a module reads a variable at import that differs between files
    NOT_LOADED = "not_loaded"  # the warm session did not start
    NOT_IMPORTED = "not_imported"  # the warm session did not survive an import
    NOT_READY = "not_ready"
    NO_FORK = "no_fork"  # one fork failed
    LOST = "lost"  # the warm session ended


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
