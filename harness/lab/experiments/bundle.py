"""A bundle: a recorded run, cut down to one step and what it begins with, in one file that another machine can run.

    RUN, K ─▶ its checkpoint before K, the frames from there to K, what was kept of K ─▶ K.rlb

    bundle.json                          the head: which step, from where, and a checksum of every other member
    call.json manifest.json              what was called, with which configuration, at which level; the fingerprint
    rank-0.log curve.jsonl               the digests of the steps from the checkpoint on; the curve of the whole run
    tensors/rank-0-step-7.safetensors    what was kept of the step: its rollouts, or all of it
    unfinished/...                       the same of a step in whose middle the run has ended
    checkpoints/step-000005/...          the checkpoint from which the step is reached; absent where it is named only

Nothing else may be in one: names are checked against this list. Of a checkpoint only files of formats that hold data
may be in one, so that no member can be imported, and none is a pickle. What call.json names is checked by `trust`. The
configuration is the recorded one, which has no secrets. A checkpoint is taken as it is.
"""

import json
import os
import re
import stat
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from xxhash import xxh3_128

from harness import __version__
from harness.bits.errors import BundleError, TraceError, UsageError
from harness.bits.files import MALFORMED, open_regular, replacing
from harness.bits.redaction import redact_argv, redact_fields, redact_values
from harness.bits.text import path_text
from harness.lab.experiments.preparation import place_of
from harness.lab.experiments.recorded_run import CHECKPOINTS, RecordedRun, check_step, unfinished_trace
from harness.recording.entry_call import CALL, EntryCall
from harness.trace.excerpt import excerpt
from harness.trace.format import HEADER, done_payload, frame
from harness.trace.layout import CURVE, MANIFEST, TENSORS, UNFINISHED, log_name, tensors_name
from harness.trace.manifest import PARTS, Fingerprint, Manifest, finished, manifest_text, upgrade
from harness.trace.reader import RankLog, Trace

FORMAT = 1
HEAD = "bundle.json"
ENDING = ".rlb"
MAX_MEMBERS = 10_000
MAX_HEAD_BYTES = 2**24
CHECKPOINT_SUFFIXES = (".json", ".jsonl", ".safetensors", ".txt", ".model", ".jinja")
"""Of the files of a checkpoint: weights, plain values, and what tokenizers are saved as."""
_OF_TRACE = r"(manifest\.json|curve\.jsonl|rank-\d{1,4}\.log|tensors/rank-\d{1,4}-step-\d{1,12}\.safetensors)"
_IS_DATA = rf"(?=[^\n]*({'|'.join(map(re.escape, CHECKPOINT_SUFFIXES))})\Z)"
_OF_CHECKPOINT = rf"{_IS_DATA}checkpoints/step-\d{{6,12}}(/[A-Za-z0-9_][A-Za-z0-9_.-]{{0,99}}){{1,4}}"
_NAME = re.compile(rf"call\.json|(unfinished/)?{_OF_TRACE}|{_OF_CHECKPOINT}", re.ASCII)
_CHECKPOINT = re.compile(r"/step-\d{6,12}\Z", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a bundle."""

    num_bytes: int
    xxh3_128: str
    """Of its bytes, 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class NamedCheckpoint:
    """A checkpoint that is not in the bundle: where it was, and what has to be there."""

    path: str
    """Of its directory, on the machine that made the bundle."""
    digest: str
    """Of the names and bytes of its files, 32 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a bundle says of itself."""

    step: int
    """The one that it is of."""
    start: int | None
    """With which its checkpoint begins; None where it begins with the run."""
    members: Mapping[str, Member]
    """By name, all but the head."""
    checkpoint: NamedCheckpoint | None = None
    """Where it is not a member; None where it is, or there is none."""
    written_by: str = f"rlharness {__version__}"

    def encoded(self) -> bytes:
        """As it stands in its member."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True).encode() + b"\n"


def is_legal_name(name: str) -> bool:
    """Whether a member besides the head may have this name; no such name leads out of a directory."""
    return _NAME.fullmatch(name) is not None


def parse_head(data: bytes) -> Head:
    """The inverse of `Head.encoded`; BundleError for anything else."""
    try:
        fields = json.loads(data)
        if int(fields["format"]) > FORMAT:
            raise BundleError(
                f"a bundle of format {fields['format']}",
                legal=f"format {FORMAT}",
                remedy=upgrade(str(fields.get("written_by", "")).removeprefix("rlharness ")),
            )
        members = {_checked_name(name): _member(each) for name, each in fields["members"].items()}
        checkpoint = fields["checkpoint"]
        named = checkpoint and NamedCheckpoint(_checked_path(checkpoint["path"]), _checked_digest(checkpoint["digest"]))
        start = None if fields["start"] is None else _count(fields["start"])
        head = Head(_count(fields["step"]), start, members, named, str(fields["written_by"]))
    except BundleError:
        raise
    except MALFORMED as error:
        raise BundleError(f"its {HEAD} cannot be read: {error!r:.100}") from None
    if head.encoded() != data:
        raise BundleError(f"its {HEAD} does not have the format of rlharness")
    return head


def check_call(data: bytes) -> EntryCall:
    """What call.json says; BundleError for anything else."""
    try:
        return EntryCall.parse(data)
    except ValueError:
        raise BundleError(
            "its call.json does not name an entry", legal="a call as rlharness writes it", remedy="make it again"
        ) from None


def _checked_name(name: str) -> str:
    if not is_legal_name(name):
        raise BundleError(f"a member called {name!r:.200}", legal="the names that a bundle has, and no others")
    return name


def _checked_path(path: Any) -> str:
    """One that is called as checkpoints are: the digest of anything else, of a whole disk, is not worth taking."""
    if not isinstance(path, str) or not path.isprintable() or not _CHECKPOINT.search(path):
        raise BundleError(f"a checkpoint called {path!r:.200}", legal="a directory called step-000012 or the like")
    return path


def _checked_digest(text: Any) -> str:
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise ValueError(text)
    return text


def _member(fields: Mapping[str, Any]) -> Member:
    return Member(_count(fields["num_bytes"]), _checked_digest(fields["xxh3_128"]))


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


Content = bytes | Path
"""What a member holds: these bytes, or those of a file."""
WHOLE = "a bundle as rlharness reproduce RUN --step K --bundle has written it"
AGAIN = "copy it again, or have it made again"
_CHUNK_BYTES = 2**20
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The first date that the format has."""
_MODE = (stat.S_IFREG | 0o644) << 16
_UNIX = 3
_ENCRYPTED = 0x1
_DAMAGE = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, RuntimeError, EOFError, struct.error),
    *(ValueError, KeyError, IndexError, TypeError, OverflowError),
)
"""What the standard library raises of archives that are damaged, or of other kinds."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose head and names have been checked; its members are when they are read."""

    path: Path
    head: Head

    def read(self, name: str, limit_bytes: int = MAX_HEAD_BYTES) -> bytes:
        """The bytes of a small member, checked; BundleError."""
        with _opened(self.path) as (archive, infos):
            if name not in infos or infos[name].file_size > limit_bytes:
                raise BundleError(f"{self.path} has no {name} of at most {limit_bytes:,} bytes")
            with archive.open(infos[name]) as member:
                return b"".join(_checked(member, name, self.head.members[name]))

    def unpack(self, directory: Path) -> None:
        """Write every member below a directory that is new; BundleError where one is not what the head says."""
        with _opened(self.path) as (archive, infos):
            for name, expected in self.head.members.items():
                target = directory / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(infos[name]) as member, target.open("xb") as file:
                    for chunk in _checked(member, name, expected):
                        file.write(chunk)


def open_bundle(path: Path) -> Bundle:
    """A bundle, its head and the names of its members checked; BundleError for any other file."""
    with _opened(path) as (archive, infos):
        if infos.get(HEAD) is None or infos[HEAD].file_size > MAX_HEAD_BYTES:
            raise BundleError(f"{path} is not a bundle: it has no {HEAD}")
        with archive.open(infos[HEAD]) as member:
            head = parse_head(member.read())
        sizes = {name: info.file_size for name, info in infos.items() if name != HEAD}
        if sizes != {name: member.num_bytes for name, member in head.members.items()}:
            raise BundleError(f"the members of {path} differ from those in its {HEAD}")
        return Bundle(path, head)


def write_bundle(path: Path, head: Head, contents: Mapping[str, Content]) -> None:
    """Write a bundle, and replace an existing one; on OSError, leave nothing.

    The checksums of the head are those of `contents`, see `checksums`.
    """
    with replacing(path, is_synced=True) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in ((HEAD, head.encoded()), *sorted(contents.items())):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.create_system, info.external_attr = _UNIX, _MODE
            info.file_size = len(content) if isinstance(content, bytes) else content.stat().st_size
            with archive.open(info, "w") as member:
                for chunk in _chunks(content):
                    member.write(chunk)


def checksums(contents: Mapping[str, Content]) -> dict[str, Member]:
    """What a head says of these members."""
    return {name: _member_of(content) for name, content in contents.items()}


def _member_of(content: Content) -> Member:
    digest, num_bytes = xxh3_128(), 0
    for chunk in _chunks(content):
        digest.update(chunk)
        num_bytes += len(chunk)
    return Member(num_bytes, digest.hexdigest())


def _chunks(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with open_regular(content) as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


@contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """An archive and its members by name, all of them harmless; BundleError for whatever is wrong inside."""
    try:
        with open_regular(path, follows_links=True) as file, zipfile.ZipFile(file) as archive:
            yield archive, _harmless(archive, os.fstat(file.fileno()).st_size)
    except BundleError as error:
        raise BundleError(_named(path, error.what), legal=error.legal or WHOLE, remedy=error.remedy or AGAIN) from None
    except OSError as error:
        raise BundleError(
            f"{error.filename or path}: {error.strerror or error}",
            legal=WHOLE,
            remedy="name a readable file, and a writable directory",
        ) from None
    except _DAMAGE as error:
        raise BundleError(
            f"{path} is damaged, or not a bundle: {str(error) or type(error).__name__:.100}", legal=WHOLE, remedy=AGAIN
        ) from None


def _named(path: Path, what: str) -> str:
    return what if str(path) in what else f"{path}: {what}"


def _harmless(archive: zipfile.ZipFile, file_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name; BundleError where one could be anything but a file of its own size at its own place."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise BundleError(f"{len(infos):,} members", legal=f"at most {MAX_MEMBERS:,}")
    if sum(info.file_size for info in infos) > file_bytes:
        raise BundleError("its members are larger than the file that holds them")
    for info in infos:
        mode = info.external_attr >> 16
        is_stored = info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size
        if not is_stored or info.flag_bits & _ENCRYPTED or stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise BundleError(f"{info.filename!r:.200} is compressed, encrypted, or not a file", legal="stored files")
        if info.orig_filename != info.filename or not (info.filename == HEAD or is_legal_name(info.filename)):
            raise BundleError(
                f"a member called {info.orig_filename!r:.200}", legal="the names that a bundle has, and no others"
            )
    found = {info.filename: info for info in infos}
    if len(found) != len(infos):
        raise BundleError("two members have the same name")
    return found


def _checked(member: IO[bytes], name: str, expected: Member) -> Iterator[bytes]:
    """The bytes of a member; BundleError at their end where they are not what the head says."""
    digest, num_bytes = xxh3_128(), 0
    while chunk := member.read(_CHUNK_BYTES):
        digest.update(chunk)
        num_bytes += len(chunk)
        yield chunk
    if (num_bytes, digest.hexdigest()) != (expected.num_bytes, expected.xxh3_128):
        raise BundleError(f"{name} is damaged: its checksum differs from the head")


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
    _check_links(contents, (run.directory, kept_by or run.directory, *((found[0].parents[1],) if found else ())))
    try:
        head = Head(step, found[1] if found else None, checksums(contents), named)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(path, head, contents)
    except OSError as error:
        raise BundleError(
            f"the bundle {path_text(path)} cannot be written: {error.strerror}", remedy="name another one with --bundle"
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
            f"{path_text(log.path)} cannot be read: {error.strerror}", remedy="copy the run to where it can be read"
        ) from None
    return b"".join([HEADER, *map(frame, payloads), frame(done_payload(len(payloads)))])


def _files(directory: Path, prefix: str) -> dict[str, Content]:
    """Every file below a directory, by its name in a bundle."""
    found = sorted(path for path in directory.rglob("*") if path.is_symlink() or path.is_file())
    return {f"{prefix}/{path.relative_to(directory).as_posix()}": path for path in found}
