"""Errors that say that this machine has run out of something are the user's, with the limit; all others stay bugs."""

import errno
import os
import resource
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import ExhaustedError, UsageError
from harness.process.exhaustion import exhaustion_of, reason_of, shortage_at
from tests.support.file_limits import largest_file

LACKING = {
    errno.ENOSPC: "No space left on device",
    errno.EDQUOT: "quota",
    errno.EROFS: "a file system is read-only",
    errno.EMFILE: "there is no file descriptor left",
    errno.ENFILE: "this machine has no file descriptor left",
    errno.EAGAIN: "there is no process or thread left",
    errno.ENOMEM: "there is no memory left",
}


@given(number=st.sampled_from(sorted(errno.errorcode)), depth=st.integers(0, 3), is_group=st.booleans())
def test_an_error_of_the_machine_is_found_within_others_and_no_other_is(
    number: int, depth: int, is_group: bool
) -> None:
    error: Exception = OSError(number, os.strerror(number))
    for _ in range(depth):
        outer = ExceptionGroup("tasks", [ValueError("another"), error]) if is_group else ValueError("because")
        if not is_group:
            outer.__cause__ = error
        error = outer
    found = exhaustion_of(error)
    assert (found is not None) == (number in LACKING)
    if found is not None:
        assert LACKING[number] in found.what
        assert os.strerror(number) in found.what
        assert all((found.legal, found.remedy))
        assert reason_of(error) == f"{found.what}; {found.remedy}"
    else:
        assert reason_of(error) == " ".join(str(error).split())


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        (MemoryError(), "there is no memory left"),
        (ImportError("torch.so: failed to map segment from shared object"), "there is no memory left"),
        (RuntimeError("can't start new thread"), "there is no process or thread left"),
        (ImportError("cannot import name 'x'"), ""),
        (RuntimeError("a bug"), ""),
        (BlockingIOError(errno.EAGAIN, "would block", "a pipe"), ""),
        (UsageError("of the user"), ""),
    ],
)
def test_errors_without_a_number_are_known_by_what_they_say(error: Exception, lacking: str) -> None:
    found = exhaustion_of(error)
    assert (found is not None) == bool(lacking)
    assert found is None or lacking in found.what


def test_one_that_was_found_already_stays_as_it_is() -> None:
    first = ExhaustedError("x", remedy="y")
    assert exhaustion_of(first) is first


def test_an_error_of_the_user_stands_for_its_cause() -> None:
    error = UsageError("the page cannot be written", remedy="choose another file")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert exhaustion_of(error) is None


def test_an_error_that_causes_itself_ends() -> None:
    error = ValueError("x")
    error.__cause__ = error
    assert exhaustion_of(error) is None


def test_the_limit_is_named() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1234), hard))
    try:
        found = exhaustion_of(OSError(errno.EMFILE, "Too many open files"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found is not None
    assert "the limit is 1,234 (open files)" in found.what
    assert "ulimit -n" in found.remedy


def test_a_file_is_too_large_for_a_limit_only_where_there_is_one() -> None:
    error = OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    with largest_file(1 << 40):
        found = exhaustion_of(error)
    assert found is not None
    assert f"the limit is {1 << 40:,}" in found.what
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:
        assert exhaustion_of(error) is None


def test_a_disk_is_named_by_the_nearest_directory_and_one_with_room_lacks_nothing(tmp_path: Path) -> None:
    assert shortage_at(tmp_path) == shortage_at(tmp_path / "not" / "there") == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"f_flag": os.ST_RDONLY}, "the file system of {} is read-only"),
        ({"f_ffree": 0, "f_favail": 0}, "the disk of {} has none of its 100 inodes left"),
        ({"f_files": 0, "f_ffree": 0, "f_favail": 0}, ""),  # a file system that makes inodes as it needs them
        ({"f_bfree": 0, "f_bavail": 0}, "the disk of {} is full: no byte of 409,600 is free"),
    ],
)
def test_what_a_disk_lacks_is_read_from_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, int], said: str
) -> None:
    names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_flag")
    plain = dict(zip(names, (4096, 4096, 100, 9, 9, 100, 9, 9, 0), strict=True))
    figures = os.statvfs_result((*({**plain, **changed}[name] for name in names), 255))
    monkeypatch.setattr(os, "statvfs", lambda path: figures)
    assert shortage_at(tmp_path / "new") == said.format(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = exhaustion_of(OSError(errno.ENOSPC, "No space left on device"))
    assert found is not None
    if said:
        assert found.what.startswith(said.format(tmp_path))
