"""Limits of the control groups around this process: memory, processor time, processes. Versions 1 and 2.

A group's limit holds for everything below it, so the tightest from this process's own group up to the root of what can
be seen counts. A container that sees only its own part of the tree has its limit at that root.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

UNLIMITED_BYTES = 1 << 62
"""Version 1 writes the largest multiple of a page below 2^63 for none."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The tightest limits; None where there is none, or nothing can be read."""

    memory_bytes: int | None = None
    used_memory_bytes: int | None = None
    """In use within the group that sets the limit on memory, without the page cache that can go at once."""
    num_cpus: float | None = None
    """Processor time as so many whole processors."""
    num_processes: int | None = None
    num_live_processes: int | None = None
    """Within the group that sets the limit on processes."""


def read_group_limits(root: Path = Path("/")) -> GroupLimits:
    """The limits of this process's groups; `root` is where proc and sys are found."""
    memory = _tightest(_numbers(root, "memory", ("memory.max", "memory.limit_in_bytes")))
    processes = _tightest(_numbers(root, "pids", ("pids.max",)))
    cpus = [number for directory in _groups(root, "cpu") if (number := _cpus(directory)) is not None]
    limit = GroupLimits(num_cpus=min(cpus, default=None))
    if memory is not None and memory[0] < UNLIMITED_BYTES:
        limit = GroupLimits(memory[0], _used_memory_bytes(memory[1]), limit.num_cpus)
    if processes is None:
        return limit
    live = _number(processes[1] / "pids.current")
    return GroupLimits(limit.memory_bytes, limit.used_memory_bytes, limit.num_cpus, processes[0], live)


def _tightest(found: Iterator[tuple[int, Path]]) -> tuple[int, Path] | None:
    return min(found, key=lambda pair: pair[0], default=None)


def _numbers(root: Path, controller: str, names: tuple[str, ...]) -> Iterator[tuple[int, Path]]:
    for directory in _groups(root, controller):
        for name in names:
            number = _number(directory / name)
            if number is not None:
                yield number, directory


def _used_memory_bytes(directory: Path) -> int | None:
    used = _number(directory / "memory.current")
    used = _number(directory / "memory.usage_in_bytes") if used is None else used
    if used is None:
        return None
    facts = dict(line.split(" ", 1) for line in _text(directory / "memory.stat").splitlines() if " " in line)
    cached = facts.get("total_inactive_file", facts.get("inactive_file", "0"))  # version 1 says both
    return max(0, used - int(cached)) if cached.isdigit() else used


def _number(path: Path) -> int | None:
    """The number in a file; None for "max", and where there is no such file."""
    text = _text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _cpus(directory: Path) -> float | None:
    """The processors' time that a group is given; None for all of it."""
    quota, _, period = _text(directory / "cpu.max").strip().partition(" ")
    if not quota:
        quota, period = _text(directory / "cpu.cfs_quota_us").strip(), _text(directory / "cpu.cfs_period_us").strip()
    if not (quota.isdigit() and period.isdigit() and int(period)):
        return None
    return int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, ValueError):
        return ""


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Directories of this process's groups that may limit `controller`, from its own up to the mount's root."""
    own = _own_groups(root)
    for fs_type, options, mount_root, mountpoint in _mounts(root):
        name = "" if fs_type == "cgroup2" else controller
        path = own.get(name)
        if path is None or (name and name not in options):
            continue
        inside = path.removeprefix(mount_root) if mount_root != "/" else path
        top = root / mountpoint.lstrip("/")
        directory = top / inside.strip("/")
        while directory != top and top in directory.parents:
            yield directory
            directory = directory.parent
        yield top


def _own_groups(root: Path) -> Mapping[str, str]:
    """Controller -> path of this process's group within its hierarchy; "" stands for version 2."""
    groups: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        groups |= dict.fromkeys(names.split(","), path)
    return groups


def _mounts(root: Path) -> Iterator[tuple[str, list[str], str, str]]:
    """Type, options, root and place of every mounted hierarchy of control groups."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        fields, _, tail = line.partition(" - ")
        fs_type, _, options = tail.split(" ", 2)
        if fs_type in ("cgroup", "cgroup2"):
            mount_root, mountpoint = fields.split()[3:5]
            yield fs_type, options.split(","), mount_root, mountpoint
