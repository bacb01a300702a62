"""The directory of an asynchronous run. A step's directory appears once, whole, and is never written again.

    outputs/run_default/
        batches/step_3/      samples of a step, and what became of their groups       by the orchestrator
        broadcasts/step_3/   weights after 3 steps                                    by the trainer
        evaluations/step_3/  mean rewards of these weights                            by the orchestrator
        checkpoints/         what the trainer resumes from: `rlcore.checkpoint`

Each step has a file STABLE with the digests of the others. A process may be killed at any moment: what it was writing
has a hidden name, which no process reads, and is written again. Order goes by numbers: no clock is read, no time of a
file. Batches are kept: they are the ledger, and the schedule of a replay.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.bits.files import parse_object, read_regular
from rlcore.checkpoint import flush
from rlcore.errors import CheckpointError

RUN = "run_default"
"""Of a run below the trainer's `output_dir`; inference and orchestrator are given the run's own."""
BATCHES, BROADCASTS, CHECKPOINTS, EVALUATIONS = "batches", "broadcasts", "checkpoints", "evaluations"
STABLE = "STABLE"
SETTINGS, SETTINGS_FILE = "settings", "settings.json"
BATCH = "batch.json"
"""File of a batch: {"ledger": [[group, version, fate]], "rows": the samples that are trained, and what the trainer
needs to know}."""
METRICS = "metrics.json"
"""File of a broadcast: numbers of the step, and the digest of its weights; of an evaluation: mean rewards."""
METRICS_LOG, ROLLOUTS_LOG = "metrics.jsonl", "rollouts.jsonl"
"""What the trainer and the orchestrator have measured; a line for each step, of which the last counts."""
POLL_S = 0.005
TRAINED, TOO_OLD, FAILED, FILTERED, SURPLUS = "trained", "too old", "failed", "filtered", "surplus"
"""What becomes of a group; of a failed one some requests have ended the server, and the others are trained."""
Ledger = Sequence[tuple[int, int, str]]
MAX_BYTES = 1 << 40


def path_of(directory: Path, step: int) -> Path:
    """Return the directory of a step."""
    return directory / f"step_{step}"


def publish(directory: Path, step: int, files: Mapping[str, bytes]) -> None:
    """Write the directory of a step, which appears at one stroke.

    If it is there already, as after a kill, it has to have the same bits. Raises CheckpointError, and leaves no part.
    """
    final = path_of(directory, step)
    hidden = final.with_name(f".{final.name}")
    stable = json.dumps({name: hashlib.sha256(content).hexdigest() for name, content in files.items()}).encode()
    try:
        shutil.rmtree(hidden, ignore_errors=True)  # of a process that was killed here
        hidden.mkdir(parents=True)
        for name, content in {**files, STABLE: stable}.items():
            (hidden / name).write_bytes(content)
            flush(hidden / name)
        flush(hidden)
        if not final.exists():
            hidden.rename(final)  # fails on a directory that holds files: the first one stays
            flush(directory)
            return
        found = read_regular(final / STABLE)
    except OSError as error:
        raise CheckpointError(
            f"{final} cannot be written: {error.strerror or error}",
            remedy="make room, and start this process again: it goes on where it was",
        ) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    if found != stable:
        raise CheckpointError(
            f"{final} was made before, with other bits",
            legal="a directory of one run, whose settings and model are as they were",
            remedy="another output_dir for another run",
        )


def claim(run: Path, role: str, settings: Mapping[str, object]) -> None:
    """Keep what a role's part of the run follows from. Raises CheckpointError in the directory of another run."""
    if claimed(run, role):
        compare_settings(run, role, settings, remedy="another output_dir for another run")
    publish(run / SETTINGS / role, 0, {SETTINGS_FILE: json.dumps(settings, sort_keys=True).encode()})


def claimed(run: Path, role: str) -> dict[str, Any]:
    """Return the settings that a role has claimed, or an empty mapping."""
    own = run / SETTINGS / role
    return dict(parse_object(read(own, 0, SETTINGS_FILE))) if is_there(own, 0) else {}


def compare_settings(
    run: Path, role: str, settings: Mapping[str, object], *, left_out: Collection[str] = (), remedy: str
) -> None:
    """Compare settings with those that a role has claimed. Raises CheckpointError, with all that differ."""
    kept = claimed(run, role)
    given = parse_object(json.dumps(settings).encode())
    keys = (kept.keys() | given.keys()) - {*left_out}
    if differing := sorted(key for key in keys if kept.get(key) != given.get(key)):
        shown = (f"{key} was {_shown(kept.get(key))}, and is {_shown(given.get(key))}" for key in differing)
        raise CheckpointError(
            f"{run} is of a run of other settings: {', '.join(differing)} of {role} differ ({'; '.join(shown)})",
            legal="the settings and the model that it began with",
            remedy=remedy,
        )


def _shown(value: object) -> str:
    """Return a setting as text, with its keys in order: two are compared by eye."""
    return f"{json.dumps(value, sort_keys=True):.200}"


def read(directory: Path, step: int, name: str) -> bytes:
    """Read a file of a step, whose digest is checked. Raises CheckpointError."""
    path = path_of(directory, step)
    try:
        content = read_regular(path / name, max_bytes=MAX_BYTES)
        expected = parse_object(read_regular(path / STABLE)).get(name)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path / name} cannot be read: {getattr(error, 'strerror', None) or error}",
            remedy="a process that reads it may have been slower than the trainer: see ckpt and max_off_policy_steps",
        ) from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise CheckpointError(f"{path / name} is damaged", legal=f"the digest in {STABLE}", remedy="copy it again")
    return content


def read_batch(run: Path, step: int) -> dict[str, Any]:
    """Read the batch of a step. Raises CheckpointError."""
    found: dict[str, Any] = json.loads(read(run / BATCHES, step, BATCH))
    return found


def read_batches(run: Path) -> Iterator[dict[str, Any]]:
    """Read every batch; they are numbered from 0 without a gap. Raises CheckpointError."""
    found = steps(run / BATCHES)
    if found != list(range(len(found))):
        missing = next(step for step in range(len(found)) if step not in found)
        raise CheckpointError(f"{run / BATCHES}/step_{missing} is missing", remedy="restore it: it is the ledger")
    return (read_batch(run, step) for step in found)


def ledger_of(batch: Mapping[str, Any]) -> Ledger:
    """Return what became of groups until a batch was closed."""
    return [(group, version, fate) for group, version, fate in batch["ledger"]]


def steps(directory: Path) -> list[int]:
    """Return the numbers of the steps that are there, in order."""
    return sorted(int(path.parent.name.removeprefix("step_")) for path in directory.glob(f"step_*/{STABLE}"))


def is_there(directory: Path, step: int) -> bool:
    """Return whether a step is there."""
    return (path_of(directory, step) / STABLE).exists()


def retire(directory: Path, before: int) -> None:
    """Remove steps before this one; each loses its name at once, and a file that is open is read to its end."""
    for step in [step for step in steps(directory) if step < before]:
        path = path_of(directory, step)
        gone = path.with_name(f".gone_{step}")
        shutil.rmtree(gone, ignore_errors=True)
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


@contextmanager
def held(run: Path, role: str, say: Callable[[str], None]) -> Iterator[None]:
    """Be the only process of this role in the directory; another one waits here until this one has ended."""
    run.mkdir(parents=True, exist_ok=True)
    lock = os.open(run / f".{role}.lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say(f"another {role} works in {run}: waiting for its end")
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def append(path: Path, values: Mapping[str, object]) -> None:
    """Append a line of JSON: what was measured, on which no bit depends."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, json.dumps(values).encode() + b"\n")
    finally:
        os.close(file)
