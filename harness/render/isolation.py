"""Sentences of the notes on isolation, one for each code."""

from harness.bits.text import count
from harness.runner.isolation_notes import IsolationCode, IsolationNote, NotForked

CHANGES = {
    IsolationCode.CHANGED_ENVIRONMENT: "changed environment variables and did not restore them",
    IsolationCode.CHANGED_CWD: "changed the working directory, which rlharness restored, to",
    IsolationCode.LEFT_PROCESS: "left a process running, which ends with its worker",
    IsolationCode.LEFT_THREAD: "left a thread running, and its worker cannot exit before that ends",
}
AT_IMPORT = {
    NotForked.THREADS: "starts threads",
    NotForked.CUDA: "initialises CUDA",
    NotForked.PROCESSES: "starts a process",
    NotForked.SOCKETS: "opens sockets",
    NotForked.FILES: "holds a file open for writing",
    NotForked.CWD: "changes the working directory",
    NotForked.TEMPORARY_FILES: "makes temporary files",
    NotForked.REPLACED: "replaces system functions",
}
"""What a suite or file does when it is imported."""
OF_SESSION = {
    NotForked.SUITE_THREADS: "the suite starts threads before its files are imported",
    NotForked.NOT_LOADED: "the suite cannot be loaded ahead of its files",
    NotForked.NOT_IMPORTED: "the imports of the suite did not end well in the warm session",
    NotForked.NOT_READY: "the warm session is not ready",
    NotForked.NO_FORK: "the warm session could not fork",
    NotForked.LOST: "the warm session was lost",
}


def isolation_text(note: IsolationNote) -> str:
    """Return the sentence of a note. It may hold texts of others, unescaped."""
    if note.code in CHANGES:
        return f"{note.path} {CHANGES[note.code]}: {note.detail}"
    why = _reason_text(note)
    if note.code is IsolationCode.TESTS_NOT_FORKED:
        files = note.path or count(note.num_processes, "file")
        return f"the tests of {files} ran in one process{' each' if note.num_processes > 1 else ''}: {why}"
    if not note.num_processes:
        return f"each file has an interpreter of its own: {why}"
    verb = "has" if note.num_processes == 1 else "have"
    return f"{count(note.num_processes, 'process', 'processes')} {verb} an interpreter of their own: {why}"


def _reason_text(note: IsolationNote) -> str:
    if note.reason is NotForked.READS:
        name, _, reader = note.detail.partition(" ")
        return f"{reader} reads {name} when it is imported"
    if note.reason is NotForked.PLUGIN_THREADS:
        return f"the plugin {note.detail} starts threads; to run without it: rlharness run -- -p no:{note.detail}"
    detail = f" ({note.detail})" if note.detail else ""
    if note.reason in AT_IMPORT:
        subject = "the file" if note.path else "the suite"
        return f"{subject} {AT_IMPORT[note.reason]} when it is imported{detail}"
    return f"{OF_SESSION[note.reason]}{detail}" if note.reason is not None else note.detail
