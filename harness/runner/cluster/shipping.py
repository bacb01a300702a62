"""The sources of a suite on the nodes: shared (every node has them at the same path), or shipped with the run.

    run: pack_sources ─▶ pieces of a compressed archive ──Source──▶ agent: unpack_sources ─▶ a directory of its own

What is shipped is the directory of the configuration, without what a tool can make again. It is removed at the end.
"""

import io
import os
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import NetworkError, UsageError
from harness.process.scratch import remove_tree
from harness.runner.cluster.channel import Channel
from harness.runner.cluster.messages import PART_BYTES, Source, Welcome, from_data

SOURCES_S = 120.0
"""For the next piece of the archive."""
MAX_SOURCES_BYTES = 1 << 30
NOT_SHIPPED = frozenset(
    (
        *(".git", ".hg", ".svn", ".rlharness", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".nox"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"),
    )
)
"""Names of directories that are left out."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where the suite is on a node."""

    cwd: Path
    root: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that change with it."""


def pack_sources(root: Path, cwd: Path) -> tuple[bytes, ...]:
    """Return the archive of `root` in pieces. UsageError where `cwd` is not below it, or it is too large."""
    if not cwd.is_relative_to(root):
        raise UsageError(
            f"--sources ship: {cwd} is not below {root}, the directory of the configuration",
            legal="a working directory below the directory that is shipped",
            remedy="--sources share, or start the run below that directory",
        )
    total_bytes = 0
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for path in _shipped(root):
            total_bytes += path.lstat().st_size
            if total_bytes > MAX_SOURCES_BYTES:
                raise UsageError(
                    f"--sources ship: {root} has more than {MAX_SOURCES_BYTES >> 20} MiB",
                    legal=f"at most that, without {', '.join(sorted(NOT_SHIPPED))}",
                    remedy="--sources share, with the suite on a file system that every node has",
                )
            archive.add(path, path.relative_to(root).as_posix(), recursive=False)
    data = buffer.getvalue()
    return tuple(data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES))


def _shipped(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in NOT_SHIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() or path.is_symlink():
                yield path


@asynccontextmanager
async def unpack_sources(channel: Channel, welcome: Welcome, environ: Mapping[str, str]) -> AsyncIterator[Places]:
    """Receive the sources if the run ships them; where the suite is, until the context ends.

    UsageError where sources are shared and this node does not have them.
    """
    cwd, root = Path(welcome.cwd), Path(welcome.root)
    if not welcome.ships:
        if not cwd.is_dir():
            raise UsageError(
                f"{cwd} is no directory on this node",
                legal="with --sources share, the path of the suite is the same on every node",
                remedy="rlharness run --sources ship",
            )
        yield Places(cwd, root)
        return
    own = Path(tempfile.mkdtemp(prefix="rlharness-sources-"))
    try:
        await _receive(channel, own)
        yield Places(own / cwd.relative_to(root), own, _moved(environ, root, own))
    finally:
        remove_tree(str(own))


async def _receive(channel: Channel, directory: Path) -> None:
    with tempfile.TemporaryFile() as buffer:
        while isinstance(message := await channel.receive(SOURCES_S), Source):
            if not message.data:
                break
            buffer.write(from_data(message.data))
        else:
            raise NetworkError("the sources have not come")
        buffer.seek(0)
        with tarfile.open(fileobj=buffer, mode="r:gz") as archive:
            archive.extractall(directory, filter="tar")


def _moved(environ: Mapping[str, str], root: Path, own: Path) -> dict[str, str]:
    """PYTHONPATH with the entries below `root` at their new place; nothing where there are none."""
    entries = environ.get("PYTHONPATH", "").split(os.pathsep)
    moved = [
        str(own / Path(each).relative_to(root)) if each and Path(each).is_relative_to(root) else each
        for each in entries
    ]
    return {} if moved == entries else {"PYTHONPATH": os.pathsep.join(moved)}
