"""Where the attempts' TMPDIRs lie: a short path on a local file system, made for one run and removed after it.

Short, because Ray puts its sockets below TMPDIR and a Unix socket's path has at most 107 bytes. Local, because sockets,
locks and memory maps fail or crawl on network file systems.
"""

import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.files import kind_of
from harness.process.exhaustion import shortage_at

MAX_SOCKET_PATH_BYTES = 107
"""sun_path's 108 bytes less the NUL (unix(7))."""
RAY_TAIL_BYTES = len("/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.99")
"""Bytes that Ray 2.60 adds to TMPDIR for its longest socket, with the kernel's longest pid and its hundredth node."""
MAX_TMPDIR_BYTES = MAX_SOCKET_PATH_BYTES - RAY_TAIL_BYTES
"""Longest TMPDIR of an attempt that Ray can start in."""
MAX_ATTEMPT_NAME_BYTES = 5
"""Longest name of an attempt's directory below the scratch root."""
_ROOT_PREFIX = "rlh-"
_HELD = ".held"
"""Name of a file in the scratch root that its run keeps locked; rlharness never removes a root without it."""
_ROOT_NAME_BYTES = len(_ROOT_PREFIX) + 8  # mkdtemp's random part
MAX_PARENT_BYTES = MAX_TMPDIR_BYTES - len("/") - _ROOT_NAME_BYTES - len("/") - MAX_ATTEMPT_NAME_BYTES
"""Longest directory the scratch root can be made in."""

FALLBACKS = ("/tmp", "/var/tmp", "/dev/shm")
_NETWORK = re.compile(
    r"9p|acfs|afs|beegfs|ceph|cifs|coda|davfs|gfs2?|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|panfs|pvfs2"
    r"|quobyte|smb3|smbfs|vastfs|wekafs"
    r"|fuse\.(afp|alluxio-fuse|beegfs|blobfuse2?|ceph(-fuse)?|curlftpfs|cvmfs2|davfs2?|gcsfuse|glusterfs|goofys|gpfs"
    r"|hdfs|juicefs|JuiceFS:.*|mfs|moosefs|mount-s3|objectivefs|quobyte|rclone|s3fs|s3ql|seaweedfs|sshfs|weed)"
)
"""Types, as the mount table spells them, whose files lie on another machine. Other types with "fuse." (overlays,
encryption) are local."""


Mounts = Sequence[tuple[str, str]]
"""Path and type of each mounted file system."""


def is_network(fs_type: str) -> bool:
    """Whether a file system type, as the mount table spells it, keeps its files on another machine."""
    return _NETWORK.fullmatch(fs_type) is not None


def fs_type_of(path: str, mounts: Mounts) -> str:
    """Type of the file system that holds `path` (absolute, no links): deepest mount, last of equals; "" if unknown."""
    holding = [mount for mount in mounts if path == mount[0] or path.startswith(mount[0].rstrip("/") + "/")]
    return max(enumerate(holding), key=lambda each: (len(each[1][0]), each[0]), default=(0, ("", "")))[1][1]


def why_unfit(path: str, mounts: Mounts) -> str:
    """Why the scratch root cannot lie in the directory `path`; empty where it can."""
    if not os.path.isabs(path):
        return "is not an absolute path"
    if not (os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)):
        return "is not a writable directory"
    if shortage := shortage_at(path):
        return f"takes no file: {shortage}"
    if is_network(fs_type := fs_type_of(os.path.realpath(path), mounts)):
        return f"is on a network file system ({fs_type})"
    num_bytes = len(os.fsencode(path))
    if num_bytes > MAX_PARENT_BYTES:
        return f"is {num_bytes} bytes long, and Ray's socket paths leave room for {MAX_PARENT_BYTES}"
    return ""


def choose(tmpdir: str, fallbacks: Sequence[str], mounts: Mounts) -> tuple[str, str]:
    """The first directory that is fit, TMPDIR (empty if not set) or one of `fallbacks`, and a note if it is not TMPDIR.

    UsageError, with every reason, where none is.
    """
    given, reasons = [tmpdir.rstrip("/") or "/"] if tmpdir else [], list[str]()
    for path in (*given, *fallbacks):
        if not (reason := why_unfit(path, mounts)):
            return path, f"TMPDIR {reasons[0]}; the attempts use {path} instead" if given and reasons else ""
        reasons.append(f"{path} {reason}")
    raise UsageError(
        "no directory is fit for the temporary directories of the attempts: " + "; ".join(reasons),
        legal=f"a writable directory on a local file system, its path at most {MAX_PARENT_BYTES} bytes long",
        remedy="set TMPDIR to one, such as /tmp",
    )


def make_scratch_root(environ: Mapping[str, str], fallbacks: Sequence[str] = FALLBACKS) -> tuple[str, int, str]:
    """Make the run's scratch root, for this user alone (mode 0700); its path, what holds it, and the note of `choose`.

    TMPDIR of `environ` is tried first, then `fallbacks`. It counts as in use for as long as the descriptor returned is
    open, here or in a fork. Raises UsageError where none of them fits; OSError, and leaves nothing, where none is made.
    """
    parent, note = choose(environ.get("TMPDIR", ""), fallbacks, read_mounts())
    root = tempfile.mkdtemp(prefix=_ROOT_PREFIX, dir=parent)
    try:
        return root, hold(root), note
    except OSError:
        shutil.rmtree(root, ignore_errors=True)
        raise


def hold(root: str) -> int:
    """Mark a scratch root as in use for as long as the descriptor returned is open, here or in a fork."""
    free = os.path.join(root, f"{_HELD}.new")
    fd = os.open(free, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    os.rename(free, os.path.join(root, _HELD))  # it is seen only once it is locked
    return fd


def let_go(root: str) -> None:
    """Takes the mark of `hold` away: what is in the root is meant to stay."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(root, _HELD))


def remove_abandoned(parent: str) -> list[str]:
    """Removes the scratch roots in `parent` whose runs were killed before they could; a sentence on each.

    Roots of other users, those that are held and those that were let go are not touched.
    """
    said = []
    with os.scandir(parent) as entries:
        roots = [entry for entry in entries if entry.name.startswith(_ROOT_PREFIX)]
    for root in roots:
        try:
            is_ours = root.is_dir(follow_symlinks=False) and root.stat(follow_symlinks=False).st_uid == os.geteuid()
            fd = os.open(os.path.join(root.path, _HELD), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW) if is_ours else -1
        except OSError:  # not held by anybody, or gone meanwhile
            continue
        if fd < 0:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            said.append(remove_tree(root.path) or f"removed {root.path}, left by a killed run")
        except BlockingIOError:
            pass
        finally:
            os.close(fd)
    return said


def remove_tree(path: str) -> str:
    """Remove `path` and all below it; return the reason if something remains, or an empty text. Never raises.

    Directories without permissions are opened up first. Symbolic links are removed, never followed, even if one
    replaces a directory meanwhile. What is mounted below `path` stays as it is, with the directories that lead to it.
    Blocks for as long as the tree is large.
    """
    parent, name = os.path.split(path.rstrip("/"))
    try:
        # Only links in what leads to it are followed: a test may have put one in the place of its own TMPDIR.
        parent_fd = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} was not removed completely: {error}"
    try:
        if not _is_there(name, parent_fd):
            return ""
        root = os.path.join(os.readlink(f"/proc/self/fd/{parent_fd}"), name)
        mounted = {path for path, _ in read_mounts() if path.startswith(root + "/")}
        _remove_around(parent_fd, name, root, mounted)
    except (OSError, RecursionError) as error:
        if isinstance(error, OSError) and error.filename == name:
            error.filename = path
        return f"{path} was not removed completely: {error}"
    finally:
        os.close(parent_fd)
    return f"{path} was not removed completely: {', '.join(sorted(mounted))} is mounted in it" if mounted else ""


def require_proc() -> None:
    """Raise UsageError where /proc cannot be read: nothing could find the processes that a child has left."""
    if not os.access("/proc/self/mounts", os.R_OK):
        raise UsageError(
            "/proc is not mounted, or cannot be read: rlharness finds and ends processes by it",
            legal="Linux with /proc",
            remedy="mount -t proc proc /proc; of a container or sandbox: let it have its own /proc",
        )


def read_mounts() -> list[tuple[str, str]]:
    """Every mounted file system, pseudo ones too; UsageError without /proc."""
    import psutil

    require_proc()
    return [(partition.mountpoint, partition.fstype) for partition in psutil.disk_partitions(all=True)]


def _remove_around(parent_fd: int, name: str, path: str, mounted: set[str]) -> None:
    """Removes the largest trees at or below `name`, whose real path is `path`, in which nothing is mounted."""
    if path in mounted:
        return
    if not any(mount.startswith(path + "/") for mount in mounted):
        _remove_unmounted(parent_fd, name)
        return
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent_fd)
    try:
        for below in os.listdir(fd):
            _remove_around(fd, below, f"{path}/{below}", mounted)
    finally:
        os.close(fd)


def _remove_unmounted(parent_fd: int, name: str) -> None:
    """Removes a file or tree; an OSError says what would not go."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=parent_fd).st_mode):
        os.unlink(name, dir_fd=parent_fd)
        return
    shutil.rmtree(name, ignore_errors=True, dir_fd=parent_fd)
    if not _is_there(name, parent_fd):
        return
    _open_up(name, parent_fd)
    for _, names, _, directory_fd in os.fwalk(name, dir_fd=parent_fd):  # from the top: each is open before it is read
        for below in names:
            _open_up(below, directory_fd)
    shutil.rmtree(name, ignore_errors=True, dir_fd=parent_fd)
    if _is_there(name, parent_fd):
        shutil.rmtree(name, dir_fd=parent_fd)


def _is_there(name: str, parent_fd: int) -> bool:
    try:
        os.lstat(name, dir_fd=parent_fd)
    except FileNotFoundError:
        return False
    return True


def _open_up(name: str, parent_fd: int) -> None:
    """Gives this user every permission on a directory; a link stays as it is, and so does what it points to."""
    with suppress(OSError):  # a link, gone, or not ours to open: the last rmtree says so
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent_fd)
        try:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)
        finally:
            os.close(fd)


def make_new_directory(path: Path, *, mode: int = 0o777) -> list[str]:
    """Make a directory, and those that lead to it; return a note on each entry that was renamed for it.

    Whatever has its name gets another one, and so does a file or a link that has the name of its parent. Nothing is
    removed, and no link is followed there. Raises OSError where nothing can be made.
    """
    notes = _put_aside(path.parent, keeps_directory=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    notes += _put_aside(path, keeps_directory=False)
    path.mkdir(mode)
    return notes


def _put_aside(path: Path, *, keeps_directory: bool) -> list[str]:
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return []
    if keeps_directory and stat.S_ISDIR(mode):
        return []
    aside = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    os.rename(path, aside)
    what = kind_of(mode).replace("another file", "a file")
    return [f"{path} was {what} that an earlier test must have made; rlharness renamed it to {aside.name}"]
