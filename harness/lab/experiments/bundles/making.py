"""A recorded run, cut down to one step: what a bundle holds of it.

    RUN, K ─▶ its checkpoint before K, the frames from there to K, what was kept of K ─▶ K.rlb

The configuration is the recorded one, which has no secrets. A checkpoint is taken as it is.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from xxhash import xxh3_128

from harness.bits.errors import BundleError, TraceError, UsageError
from harness.bits.files import open_regular
from harness.bits.redaction import redact_argv, redact_fields, redact_values
from harness.bits.text import path_text
from harness.lab.experiments.bundles.archive import (
    CHECKPOINT_SUFFIXES,
    ENDING,
    Content,
    Head,
    NamedCheckpoint,
    checksums,
    is_legal_name,
    open_bundle,
    write_bundle,
)
from harness.lab.experiments.preparation import place_of
from harness.lab.experiments.recorded_run import CHECKPOINTS, RecordedRun, check_step, unfinished_trace
from harness.recording.entry_call import CALL
from harness.trace.excerpt import excerpt
from harness.trace.format import HEADER, done_payload, frame
from harness.trace.layout import CURVE, MANIFEST, TENSORS, UNFINISHED, log_name, tensors_name
from harness.trace.manifest import PARTS, Fingerprint, Manifest, finished, manifest_text
from harness.trace.reader import RankLog, Trace


def write_bundle_of(
    run: RecordedRun, step: int, path: Path, *, refers_to_checkpoint: bool = False, kept_by: Path | None = None
) -> Head:
    """Write the bundle of a step of a run, and return its head.

    `kept_by` is the directory of a run in which this step came out the same, and all of it was kept. BundleError where
    it cannot be written, the checkpoint from which the run began is gone, or holds files that no bundle may hold.
    """
    check_step(run.trace, step)
    found = checkpoint_of(run, step)
    contents = dict(_of_trace(run, found[1] if found else None, step, kept_by or run.directory))
    contents[CALL] = _call(run)
    named = None
    if found is not None:
        files = _files(found[0], f"{CHECKPOINTS}/step-{found[1]:06}")
        if refers_to_checkpoint:
            named = NamedCheckpoint(str(found[0].resolve()), checkpoint_digest(found[0]))
        else:
            contents |= files
    _check_names(contents)
    runs = (run.directory, kept_by or run.directory, *((found[0].parents[1],) if found else ()))
    _check_links(contents, runs)
    try:
        head = Head(step, found[1] if found else None, checksums(contents), named)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(path, head, contents)
    except OSError as error:
        raise BundleError(
            f"the bundle {path_text(path)} cannot be written: {error.strerror}",
            legal="a directory with room for it",
            remedy="name another one with --bundle",
        ) from None
    return head


def _check_links(contents: Mapping[str, Content], runs: Iterable[Path]) -> None:
    """BundleError for a file to which a link within a run leads: a run of others could name any file of this user."""
    real = [run.resolve() for run in runs]
    for path in contents.values():
        if isinstance(path, Path):
            is_below = any(path.resolve().is_relative_to(root) for root in real)
            if path.is_symlink() or not path.is_file() or not is_below:
                raise BundleError(
                    f"{path_text(path)} is a link, is reached by one, or is no regular file: a bundle holds the files"
                    " of the run itself",
                    legal="regular files of the run and its checkpoint, in directories that are no links",
                    remedy="look at what it links to, and replace the link by a copy if it belongs to the run",
                )


def _check_names(names: Iterable[str]) -> None:
    """BundleError for a file that nobody could open the bundle with."""
    for name in names:
        if not is_legal_name(name):
            raise BundleError(
                f"{name!r:.200} is not allowed in a bundle",
                legal=f"of a checkpoint, files that hold data: {', '.join(CHECKPOINT_SUFFIXES)}",
                remedy="have the entry write it as one of these; or name the checkpoint with --reference-checkpoint",
            )


def bundle_place(cwd: Path, name: str) -> Path:
    """Return the path of a bundle of this name, and create its directories, as for --out.

    UsageError if another file is there, which stays, or if no bundle can be written.
    """
    path = place_of(cwd, name)
    path = path if path.suffix else path.with_suffix(ENDING)
    legal, remedy = "a new file, or an earlier bundle, which is replaced", "name another one with --bundle"
    try:
        if path.exists():
            open_bundle(path)
        above = next(each for each in path.parents if each.exists())
    except BundleError:
        raise UsageError(f"{path_text(path)} exists, and is not a bundle", legal=legal, remedy=remedy) from None
    except OSError as error:
        raise UsageError(f"{path_text(path)}: {error.strerror}", legal=legal, remedy=remedy) from None
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(
            f"{path_text(path)} cannot be written: {path_text(above)} is not a writable directory",
            legal=legal,
            remedy=remedy,
        )
    return path


def checkpoint_of(run: RecordedRun, step: int) -> tuple[Path, int] | None:
    """(directory, step) of the checkpoint from which a step is reached; None where it is reached from the beginning.

    That of the run itself, else the one from which the run resumed. BundleError if that is gone.
    """
    start = run.start_before(step)
    if start is not None:
        return run.checkpoint(start), start
    values = _resumed(run)
    if values is None:
        return None
    place, start = Path(str(values[0])), values[1]
    path = place / CHECKPOINTS / f"step-{start:06}"
    if not path.is_dir():
        raise BundleError(
            f"{path_text(run.directory)} resumed from {path_text(path)}, which no longer exists",
            legal="a run whose checkpoints exist",
            remedy="restore it, or make the bundle of a later step",
        )
    return path, start


def checkpoint_digest(directory: Path) -> str:
    """A digest of the names and bytes of a checkpoint's files, 32 hexadecimal digits; OSError."""
    members = checksums(_files(directory, "checkpoint"))
    digest = xxh3_128()
    for name, member in sorted(members.items()):
        digest.update(f"{name}\0{member.num_bytes}\0{member.xxh3_128}\0".encode())
    return digest.hexdigest()


def _resumed(run: RecordedRun) -> tuple[Any, int] | None:
    """(directory of the earlier run, step) with which a run was told to go on; None where it was not."""
    if run.entry_call.resume is None:
        return None
    place, start = (_value(run.entry_call.config, run.entry_call.resume[key]) for key in ("run", "step"))
    if not place or not isinstance(start, int):
        return None
    return place, start


def _value(config: Mapping[str, Any], dotted: str) -> Any:
    found: Any = config
    for name in dotted.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _without(config: Mapping[str, Any], dotted: str) -> dict[str, Any]:
    """The same configuration without a dotted key."""
    name, _, rest = dotted.partition(".")
    if name not in config:
        return dict(config)
    if not rest:
        return {key: value for key, value in config.items() if key != name}
    return {**config, name: _without(config[name], rest)}


def _call(run: RecordedRun) -> bytes:
    """What was called, without what this machine alone knows: from where an earlier run was gone on."""
    config = dict(run.entry_call.config)
    for dotted in (run.entry_call.resume or {}).values():
        config = _without(config, dotted)
    call = replace(run.entry_call, config=redact_values(config))
    return json.dumps(asdict(call), indent=1, sort_keys=True).encode() + b"\n"


def _of_trace(run: RecordedRun, start: int | None, step: int, kept_by: Path) -> Iterator[tuple[str, Content]]:
    """The trace of a run from a step to another, as the files of one."""
    trace, manifest = run.trace, run.trace.manifest
    assert manifest is not None
    first = min(trace.steps, default=step) if start is None else start
    yield MANIFEST, manifest_text(finished(_without_secrets(manifest))).encode()
    for rank, log in trace.ranks.items():
        yield log_name(rank), _frames(log, first, step)
    if (run.directory / CURVE).exists():
        yield CURVE, run.directory / CURVE
    yield from _kept(trace, step, kept_by, "")
    unfinished = None if step in trace.steps else unfinished_trace(run.directory)
    if unfinished is not None:
        yield f"{UNFINISHED}/{MANIFEST}", manifest_text(finished(_without_secrets(manifest))).encode()
        for rank, log in excerpt(unfinished, step, step).ranks.items():
            yield f"{UNFINISHED}/{log_name(rank)}", _frames(log, step, step)
        yield from _kept(unfinished, step, kept_by / UNFINISHED, f"{UNFINISHED}/")


def _without_secrets(manifest: Manifest) -> Manifest:
    """Its recorder has left them out; whoever else has written it may not have."""
    told = manifest.fingerprint
    parts = {part: redact_fields(getattr(told, part)) for part in PARTS}
    return replace(manifest, argv=redact_argv(manifest.argv), fingerprint=Fingerprint(**parts))


def _kept(trace: Trace, step: int, kept_by: Path, prefix: str) -> Iterator[tuple[str, Content]]:
    for rank in trace.ranks:
        name = f"{TENSORS}/{tensors_name(rank, step)}"
        if (kept_by / name).exists():
            yield prefix + name, kept_by / name


def _frames(log: RankLog, first: int, last: int) -> bytes:
    """A log of these steps alone, each frame as it was written, chain and all."""
    places = [place for step, place in log.places.items() if first <= step <= last]
    try:
        with open_regular(log.path) as file:
            payloads = []
            for place in places:
                file.seek(place.start)
                payloads.append(file.read(place.length))
    except OSError as error:
        raise TraceError(
            f"{path_text(log.path)} cannot be read: {error.strerror}",
            legal="a log that this user can read",
            remedy="copy the run to where it can be read",
        ) from None
    return b"".join([HEADER, *map(frame, payloads), frame(done_payload(len(payloads)))])


def _files(directory: Path, prefix: str) -> dict[str, Content]:
    """Every file below a directory, by its name in a bundle."""
    found = sorted(path for path in directory.rglob("*") if path.is_symlink() or path.is_file())
    return {f"{prefix}/{path.relative_to(directory).as_posix()}": path for path in found}
