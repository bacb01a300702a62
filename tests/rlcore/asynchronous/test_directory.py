"""A step's directory is there whole or not at all, and what is wrong with one is said with the file's name."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.asynchronous.directory import STABLE, held, path_of, publish, read, retire, steps
from rlcore.errors import CheckpointError

FILES = {"a.json": b"{}", "weights": b"\x00" * 1000}


def test_a_step_that_is_there_is_read_back(tmp_path: Path) -> None:
    for step in (10, 2, 0):
        publish(tmp_path, step, FILES)
    assert steps(tmp_path) == [0, 2, 10]
    assert {name: read(tmp_path, 10, name) for name in FILES} == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_0", "step_10", "step_2"]


def test_a_step_may_be_made_again_with_equal_bits_alone(tmp_path: Path) -> None:
    publish(tmp_path, 3, FILES)
    publish(tmp_path, 3, FILES)
    with pytest.raises(CheckpointError, match=r"step_3 was made before, with other bits"):
        publish(tmp_path, 3, {**FILES, "a.json": b"[]"})
    assert read(tmp_path, 3, "a.json") == b"{}"
    assert [path.name for path in tmp_path.iterdir()] == ["step_3"]


@pytest.mark.parametrize("moment", ["fsync", "mkdir", "rename"])
def test_a_full_disk_leaves_no_part_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    publish(tmp_path, 0, FILES)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os if moment == "fsync" else Path, moment, full)
    with pytest.raises(CheckpointError, match=r"step_1 cannot be written: No space left") as caught:
        publish(tmp_path, 1, FILES)
    assert "goes on where it was" in caught.value.remedy
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["step_0"]
    publish(tmp_path, 1, FILES)
    assert steps(tmp_path) == [0, 1]


def test_a_process_that_is_killed_leaves_a_name_that_nobody_reads(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from rlcore.asynchronous import directory\n"
        "directory.flush = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
        "directory.publish(Path(sys.argv[1]), 4, {'a': b'1'})"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == -9
    assert steps(tmp_path) == [] and [path.name for path in tmp_path.iterdir()] == [".step_4"]
    publish(tmp_path, 4, {"a": b"2"})
    assert read(tmp_path, 4, "a") == b"2"


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: (path / "weights").write_bytes(b"\x00" * 999), "step_5/weights is damaged"),
        (lambda path: (path / "weights").unlink(), "step_5/weights cannot be read: No such file"),
        (lambda path: (path / STABLE).write_text("{"), "step_5/weights cannot be read"),
        (lambda path: path.rename(path.with_name("elsewhere")), "step_5/weights cannot be read: No such file"),
    ],
)
def test_what_is_torn_or_gone_is_named(tmp_path: Path, spoil: object, told: str) -> None:
    publish(tmp_path, 5, FILES)
    assert callable(spoil)
    spoil(path_of(tmp_path, 5))
    with pytest.raises(CheckpointError, match=told):
        read(tmp_path, 5, "weights")


def test_old_steps_go_and_the_others_stay(tmp_path: Path) -> None:
    for step in range(6):
        publish(tmp_path, step, FILES)
    with open(path_of(tmp_path, 1) / "weights", "rb") as slow:
        retire(tmp_path, 4)
        assert slow.read() == FILES["weights"], "whoever has opened a file reads it to its end"
    assert steps(tmp_path) == [4, 5] and len(list(tmp_path.iterdir())) == 2


def test_a_second_of_its_kind_waits_and_says_so(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from rlcore.asynchronous.directory import held\n"
        "with held(Path(sys.argv[1]), 'train', lambda line: print(line, flush=True)): print('mine', flush=True)"
    )
    with held(tmp_path, "train", print), held(tmp_path, "orch", print):
        second = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert second.stdout.readline() == f"another train works in {tmp_path}: waiting for its end\n"
        assert second.poll() is None
    assert second.communicate(timeout=30)[0] == "mine\n"
