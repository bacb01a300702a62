"""Where attempts' TMPDIRs lie, and their removal."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.process import scratch
from harness.process.scratch import (
    MAX_ATTEMPT_NAME_BYTES,
    MAX_PARENT_BYTES,
    MAX_TMPDIR_BYTES,
    choose,
    fs_type_of,
    hold,
    is_network,
    let_go,
    make_scratch_root,
    remove_abandoned,
    remove_tree,
)

# ---- choosing ----


def test_rays_longest_socket_fits_below_the_longest_parent() -> None:
    tmpdir = "/".join(["p" * MAX_PARENT_BYTES, "rlh-12345678", "n" * MAX_ATTEMPT_NAME_BYTES])
    assert len(tmpdir) == MAX_TMPDIR_BYTES
    assert len(f"{tmpdir}/ray/session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store.99") == 107


@pytest.mark.parametrize(
    "fs_type", ["nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "9p", "ceph", "fuse.sshfs", "fuse.gcsfuse"]
)
def test_network_file_systems(fs_type: str) -> None:
    assert is_network(fs_type)


@pytest.mark.parametrize("fs_type", ["", "ext4", "xfs", "tmpfs", "overlay", "fuse.fuse-overlayfs", "nfsd", "fuseblk"])
def test_local_file_systems(fs_type: str) -> None:
    assert not is_network(fs_type)


MOUNTS = [
    ("/", "ext4"),
    ("/home", "nfs4"),
    ("/home/a/fast", "xfs"),
    ("/tmp", "nfs"),
    ("/tmp", "tmpfs"),
]


@pytest.mark.parametrize(
    ("path", "fs_type"),
    [
        ("/", "ext4"),
        ("/var/tmp", "ext4"),
        ("/home", "nfs4"),
        ("/homes", "ext4"),
        ("/home/a", "nfs4"),
        ("/home/a/fast/x", "xfs"),
        ("/home/a/faster", "nfs4"),
        ("/tmp/x", "tmpfs"),
    ],
)
def test_the_deepest_mount_above_a_path_holds_it(path: str, fs_type: str) -> None:
    assert fs_type_of(path, MOUNTS) == fs_type


@pytest.mark.parametrize(
    ("tmpdir", "mounts", "chosen", "why"),
    [
        ("/tmp/", [("/", "ext4")], "/tmp", ""),
        ("", [("/", "ext4")], "/var/tmp", ""),
        ("/tmp", [("/", "ext4"), ("/tmp", "nfs")], "/var/tmp", "/tmp is on a network file system (nfs)"),
        ("relative", [("/", "ext4"), ("/var", "nfs")], "/dev/shm", "relative is not an absolute path"),
        ("/tmp", [("/", "nfs")], "", "/var/tmp is on a network file system (nfs)"),
    ],
)
def test_the_first_that_fits_is_chosen_and_a_tmpdir_passed_over_is_said(
    tmpdir: str, mounts: Sequence[tuple[str, str]], chosen: str, why: str
) -> None:
    if not chosen:
        with pytest.raises(UsageError) as error:
            choose(tmpdir, ["/var/tmp"], mounts)
        assert why in error.value.what
        return
    note = f"TMPDIR {why}; the attempts use {chosen} instead" if why else ""
    assert choose(tmpdir, ["/var/tmp", "/dev/shm"], mounts) == (chosen, note)


def test_the_scratch_root_is_ours_alone() -> None:
    root, held, note = make_scratch_root({"TMPDIR": "/tmp/"})
    try:
        assert note == ""
        assert os.path.dirname(root) == "/tmp"
        assert stat.S_IMODE(os.stat(root).st_mode) == 0o700
        assert len(root) + 1 + MAX_ATTEMPT_NAME_BYTES <= MAX_TMPDIR_BYTES
    finally:
        os.close(held)
    assert remove_tree(root) == ""


@pytest.mark.parametrize(
    ("tmpdir", "why"),
    [
        ("/nowhere", "is not a writable directory"),
        ("not/absolute", "is not an absolute path"),
        ("/etc/hostname", "is not a writable directory"),
    ],
)
def test_a_tmpdir_that_does_not_fit_is_passed_over_with_a_word(tmpdir: str, why: str) -> None:
    root, held, note = make_scratch_root({"TMPDIR": tmpdir})
    os.close(held)
    assert remove_tree(root) == ""
    assert note == f"TMPDIR {tmpdir} {why}; the attempts use {os.path.dirname(root)} instead"


def test_a_tmpdir_too_long_for_ray_is_passed_over(tmp_path: Path) -> None:
    long = tmp_path / "a_directory_that_is_long"
    long.mkdir()
    root, held, note = make_scratch_root({"TMPDIR": str(long)})
    os.close(held)
    assert remove_tree(root) == ""
    assert "bytes long" in note


def test_without_a_tmpdir_nothing_is_said_and_without_any_directory_it_is_an_error() -> None:
    root, held, note = make_scratch_root({}, ["/nowhere", "/tmp"])
    os.close(held)
    assert remove_tree(root) == ""
    assert note == ""
    with pytest.raises(UsageError, match="/nowhere is not a writable directory"):
        make_scratch_root({}, ["/nowhere"])


def test_a_root_that_cannot_be_held_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(root: str) -> int:
        raise OSError(28, "No space left on device")

    short = tempfile.mkdtemp(prefix="s", dir="/tmp")
    monkeypatch.setattr(scratch, "hold", fail)
    try:
        with pytest.raises(OSError, match="No space left"):
            make_scratch_root({"TMPDIR": short})
        assert os.listdir(short) == []
    finally:
        os.rmdir(short)


# ---- what killed runs leave behind ----


def test_a_root_is_removed_when_its_run_is_gone_and_never_while_it_lives(tmp_path: Path) -> None:
    held, gone, kept, strange = (tmp_path / f"rlh-{name}" for name in ("held", "gone", "kept", "strange"))
    for root in (held, gone, kept, strange):
        (root / "0001").mkdir(parents=True)
    fd = hold(str(held))
    for root in (gone, kept):
        os.close(hold(str(root)))  # as a SIGKILL does
    let_go(str(kept))
    (tmp_path / "rlh-file").write_text("")
    assert remove_abandoned(str(tmp_path)) == [f"removed {gone}, left by a killed run"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rlh-file", "rlh-held", "rlh-kept", "rlh-strange"]
    os.close(fd)
    assert remove_abandoned(str(tmp_path)) == [f"removed {held}, left by a killed run"]
    assert remove_abandoned(str(tmp_path)) == []


def test_a_root_of_another_user_is_not_touched(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a directory another user's")
    root = tmp_path / "rlh-theirs"
    root.mkdir()
    os.close(hold(str(root)))
    os.chown(root, 12345, 12345)
    assert remove_abandoned(str(tmp_path)) == []
    assert root.exists()


# ---- removing ----


def test_a_tree_goes_and_what_its_links_point_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "file").write_text("kept")
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "to_directory").symlink_to(outside)
    (root / "a" / "to_file").symlink_to(outside / "file")
    (root / "a" / "dangling").symlink_to(root / "none")
    os.mkfifo(root / "a" / "b" / "pipe")
    assert remove_tree(str(root)) == ""
    assert not root.exists()
    assert (outside / "file").read_text() == "kept"
    assert (outside / "deep").is_dir()


def test_a_link_in_the_place_of_the_tree_goes_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "root").symlink_to(outside)
    assert remove_tree(str(tmp_path / "root")) == ""
    assert not (tmp_path / "root").is_symlink()
    assert outside.is_dir()


def test_what_is_gone_already_is_no_error_and_a_file_goes_too(tmp_path: Path) -> None:
    assert remove_tree(str(tmp_path / "none")) == ""
    (tmp_path / "file").touch()
    assert remove_tree(str(tmp_path / "file")) == ""
    assert not (tmp_path / "file").exists()


# Root gives up its privileges first: permissions do not bind it.
REMOVING = """
import os, psutil, tempfile
from harness.process.scratch import remove_tree
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
root = tempfile.mkdtemp(dir="/tmp")
for path, mode in (("a", 0o500), ("b", 0o000), ("c", 0o300), (".", 0o500)):
    below = os.path.join(root, path, "below")
    os.makedirs(below)
    open(os.path.join(below, "file"), "w").close()
    os.chmod(below, 0o000)
    os.chmod(os.path.join(root, path), mode)
print([remove_tree(root), os.path.exists(root)])
theirs = os.path.join(tempfile.mkdtemp(dir="/tmp"), "mine")
os.mkdir(theirs)
os.chmod(os.path.dirname(theirs), 0o500)
print([remove_tree(theirs).replace(theirs, "TREE"), os.path.exists(theirs)])
os.chmod(os.path.dirname(theirs), 0o700)
print([remove_tree(os.path.dirname(theirs))])
"""


def run_child(code: str, *before: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [*before, sys.executable, "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_permissions_do_not_hold_a_tree_but_an_error_is_a_text() -> None:
    child = run_child(REMOVING)
    assert child.stdout.splitlines() == [
        "['', False]",
        "[\"TREE was not removed completely: [Errno 13] Permission denied: 'TREE'\", True]",
        "['']",
    ], child.stderr


# Run in a mount namespace of its own: nothing is mounted for anybody else.
REMOVING_AROUND_MOUNTS = """
import os, subprocess, sys, tempfile
from harness.process.scratch import remove_tree
root = os.path.realpath(tempfile.mkdtemp(dir="/tmp"))
outside = tempfile.mkdtemp(dir="/tmp")
open(os.path.join(outside, "kept"), "w").close()
for path in ("a/b", "a/bound", "c"):
    os.makedirs(os.path.join(root, path))
bound = os.path.join(root, "a/bound")
if subprocess.run(["mount", "--bind", outside, bound]).returncode:
    sys.exit(1)
print([remove_tree(root).replace(root, "ROOT"), os.listdir(outside), sorted(os.listdir(root)), os.listdir(root + "/a")])
subprocess.run(["umount", bound], check=True)
print([remove_tree(root), os.path.exists(root), os.listdir(outside)])
remove_tree(outside)
"""


def test_what_is_mounted_in_a_tree_stays_and_is_named() -> None:
    if shutil.which("unshare") is None or os.getuid() != 0:
        pytest.skip("mounting takes root and unshare(1)")
    child = run_child(REMOVING_AROUND_MOUNTS, "unshare", "--mount")
    if child.returncode:
        pytest.skip(f"nothing can be mounted here: {child.stderr[-200:]}")
    assert child.stdout.splitlines() == [
        "['ROOT was not removed completely: ROOT/a/bound is mounted in it', ['kept'], ['a'], ['bound']]",
        "['', False, ['kept']]",
    ]


@pytest.mark.full
def test_a_tree_too_deep_is_no_exception() -> None:
    root = tempfile.mkdtemp(dir="/tmp")
    here = os.open(root, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        complaint = remove_tree(root)
        assert bool(complaint) == os.path.exists(root)
    finally:
        subprocess.run(["rm", "-rf", root], check=True)
