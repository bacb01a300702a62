"""Hold a run's events, and what the files themselves saw, against what each file was made to do.

Two witnesses: the events say which GPUs were leased when; the files lock every GPU they were given, and the kernel
keeps the lock until the last process that inherited it is gone. So a GPU leased twice, or leased again while a child
of its last user lives, is seen by a file even where the events tell it otherwise.
"""

import fcntl
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.runner.units import Outcome
from tests.support.verl_shaped.suite import Deed, Marking, ShapedFile

Record = Mapping[str, Any]


def read_jsonl(path: Path) -> list[Record]:
    """The objects of a file of JSON lines; none where it does not exist."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def problems(
    files: Sequence[ShapedFile], events: Sequence[Record], notes: Sequence[Record], *, num_gpus: int
) -> list[str]:
    """Everything that is not as it should be, a line each; empty for a right run.

    `events` are those of --events, `notes` the lines of the suite's own `leases.jsonl`.
    """
    results: dict[str, list[Record]] = {}
    for event in events:
        if event["event"] == "unit_finished":
            results.setdefault(event["result"]["unit"]["path"], []).append(event["result"])
    found = [f"{path}: nobody asked for it" for path in results.keys() - {file.path for file in files}]
    for file in files:
        outcomes = results.get(file.path, [])
        if len(outcomes) != 1:
            found.append(f"{file.path}: {len(outcomes)} outcomes")
        else:
            found += [f"{file.path}: {line}" for line in _result_problems(file, outcomes[0])]
    return [*found, *_lease_problems(events, num_gpus), *_note_problems(files, events, notes, num_gpus)]


def held_locks(directory: Path) -> list[str]:
    """Names of GPUs and files that a process still holds: nobody may, once the run is over."""
    held = []
    for path in sorted((directory / "locks").iterdir()):
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held.append(path.name)
    return held


def _result_problems(file: ShapedFile, result: Record) -> Iterable[str]:
    counts = {outcome: count for outcome, count in result["tests"]["counts"].items() if count}
    if result["outcome"] != file.outcome:
        yield f"ended {result['outcome']} ({result['reason']}), made to end {file.outcome}"
    elif counts != file.counts:
        yield f"counted {counts}, made to count {file.counts}"
    planned = result["unit"]["need"]["gpus"]
    if planned != file.gpus and not (file.marking is Marking.WRONG and planned == 1):
        yield f"planned with {planned} GPUs, needs {file.gpus}"
    if len(result["gpu_ids"]) != (0 if file.outcome is Outcome.NOT_RUN else planned):
        yield f"planned with {planned} GPUs, given {result['gpu_ids']}"
    if file.is_collected and file.outcome is not Outcome.NO_TESTS:
        collected = (result["collected_need"] or {"gpus": None})["gpus"]
        if collected != file.gpus:
            yield f"collected with {collected} GPUs, needs {file.gpus}"
    if bool(result["left_behind"]) != (file.deed is Deed.LEAVES_CHILD):
        yield f"left behind: {result['left_behind']}"


def _lease_problems(events: Sequence[Record], num_gpus: int) -> Iterable[str]:
    """From the events: who held which GPU when."""
    holder: dict[str, str] = {}
    for event in events:
        if event["event"] == "attempt_started":
            for gpu_id in event["gpu_ids"]:
                if gpu_id in holder:
                    yield f"{event['path']}: was leased {gpu_id}, which {holder[gpu_id]} holds"
                holder[gpu_id] = event["path"]
            if len(holder) > num_gpus:
                yield f"{event['path']}: makes {len(holder)} GPUs leased at once, there are {num_gpus}"
        elif event["event"] == "lease_returned":
            for gpu_id in event["gpu_ids"]:
                holder.pop(gpu_id, None)
        elif event["event"] == "gpu_quarantined":
            yield f"{event['path']}: {event['gpu_id']} was quarantined: {event['reason']}"
    yield from (f"{path}: never gave {gpu_id} back" for gpu_id, path in holder.items())


def _note_problems(
    files: Sequence[ShapedFile], events: Sequence[Record], notes: Sequence[Record], num_gpus: int
) -> Iterable[str]:
    """From what the files saw: their own GPUs, and who else held them."""
    leased: dict[str, list[list[str]]] = {}
    for event in events:
        if event["event"] == "attempt_started":
            leased.setdefault(event["path"], []).append(sorted(event["gpu_ids"]))
    running: dict[str, int] = {}
    for note in sorted(notes, key=lambda note: float(note["at_s"])):
        if note["k"] == "twice":
            yield f"{note['file']}: {note['name']} was held by somebody else"
        elif note["k"] == "begin":
            running[note["file"]] = len(note["GPUs"])
            if sorted(note["GPUs"]) not in leased.get(note["file"], []):
                yield f"{note['file']}: saw the GPUs {note['GPUs']}, was leased {leased.get(note['file'])}"
            if sum(running.values()) > num_gpus:
                yield f"{note['file']}: {sum(running.values())} GPUs in use at once, there are {num_gpus}"
        if note["k"] == "end" or _dies_without_a_word(files, note["file"]):
            running.pop(note["file"], None)
    begun = [note["file"] for note in notes if note["k"] == "begin"]
    for file in files:
        if begun.count(file.path) != file.num_processes:
            yield f"{file.path}: began {begun.count(file.path)} times, made to begin {file.num_processes} times"


def _dies_without_a_word(files: Sequence[ShapedFile], path: str) -> bool:
    """Whether a file ends without noting so: its time is then unknown, and it is not counted as running."""
    return any(file.path == path and file.deed in (Deed.DIES, Deed.HANGS) for file in files)
