"""Files that misbehave, run by the command itself: each has the outcome that its table names, and nothing is left."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from harness.process.supervisor import process_tree
from tests.support.misbehaving.expected import (
    COLLECT_TIMEOUT_S,
    EXPECTED,
    EXPECTED_ON_A_SMALL_TMPDIR,
    EXPECTED_WITH_A_DRIVER,
    EXPECTED_WITH_RAY,
    GRACE_S,
    TIMEOUT_S,
    Expected,
)
from tests.support.nvml_stub.build import Machine, StubGpu, build, compiler, stub_env

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "support" / "misbehaving"
ALL = EXPECTED | EXPECTED_WITH_RAY | EXPECTED_ON_A_SMALL_TMPDIR | EXPECTED_WITH_A_DRIVER
CARD = "GPU-00000000-0000-0000-0000-00000000000a"


@dataclass(frozen=True)
class Run:
    """A run under way, or ended."""

    process: subprocess.Popen[bytes]
    directory: Path
    tmpdir: Path

    @cached_property
    def exit_code(self) -> int:
        return self.process.wait()

    @cached_property
    def summary(self) -> dict[str, Any]:
        assert self.exit_code in (0, 1, 13, 14), self.shown[-2000:]
        summary: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return summary

    @property
    def shown(self) -> str:
        return (self.directory / "shown.txt").read_text()

    def unit(self, path: str) -> dict[str, Any]:
        [unit] = [unit for unit in self.summary["units"] if unit["path"] == path]
        return dict(unit)


def start(directory: Path, tmpdir: Path, paths: Mapping[str, Expected], *options: str, **variables: str) -> Run:
    """Run the command on copies of these files."""
    for path in {"pytest.ini", *paths, *(str(Path(p).with_name("conftest.py")) for p in paths if "/" in p)}:
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("[pytest]\n" if path == "pytest.ini" else (FOLDER / path).read_text())
    command = [
        sys.executable,
        "-m",
        "harness",
        "run",
        "--json",
        *options,
        "--",
        "-p",
        "no:cacheprovider",
        "-p",
        "timeout",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmpdir), **variables}
    with open(directory / "summary.json", "wb") as summary, open(directory / "shown.txt", "wb") as shown:
        process = subprocess.Popen(
            command, cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=summary, stderr=shown
        )
    return Run(process, directory, tmpdir)


@pytest.fixture(scope="module")
def tmpdir_root() -> Iterator[Path]:
    """A short path, since Ray's sockets lie below; in the end every run has taken its own away."""
    root = Path(tempfile.mkdtemp(prefix="mis-", dir="/tmp"))
    yield root
    left = os.listdir(root)
    shutil.rmtree(root)
    assert left == []


@pytest.fixture(scope="module")
def card_run(tmp_path_factory: pytest.TempPathFactory, tmpdir_root: Path) -> Iterator[Run]:
    """On a pretended driver's only GPU; it waits twenty seconds for the GPU's memory."""
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    driver = tmp_path_factory.mktemp("driver")
    Machine([StubGpu(uuid=CARD)]).write(driver / "machine.txt")
    env = stub_env(build(driver), driver / "machine.txt", os.environ)
    visible = {"CUDA_VISIBLE_DEVICES": "0"}
    directory = tmp_path_factory.mktemp("GPU")
    run = start(directory, tmpdir_root, EXPECTED_WITH_A_DRIVER, "--gpus", "auto", **env, **visible)
    yield run
    run.process.kill()
    run.process.wait()


@pytest.fixture(scope="module")
def main_run(tmp_path_factory: pytest.TempPathFactory, tmpdir_root: Path) -> Iterator[Run]:
    """All that need nothing of the machine."""
    limits = ("--timeout", str(TIMEOUT_S), "--collect-timeout", str(COLLECT_TIMEOUT_S), "--grace", str(GRACE_S))
    directory = tmp_path_factory.mktemp("main")
    run = start(directory, tmpdir_root, EXPECTED, "--gpus", "sim:2", "--cpu-units", "10", *limits)
    yield run
    run.process.kill()
    run.process.wait()
    for log in directory.glob(".rlharness/runs/*/units/*/output.log"):
        log.unlink()  # 200 MB of it


@pytest.fixture(scope="module", autouse=True)
def _at_the_same_time(own_cache: Path, card_run: Run, main_run: Run) -> None:
    """One waits while the other works."""


def test_every_file_has_a_line_and_says_it_itself() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("test_*.py")}
    assert files == set(ALL)
    for path, expected in ALL.items():
        first = (FOLDER / path).read_text().split('"""')[1]
        assert expected.outcome.upper() in first, path


def assert_expected(run: Run, path: str, expected: Expected) -> None:
    unit = run.unit(path)
    assert unit["outcome"] == expected.outcome, unit
    assert expected.reason in unit["reason"]
    assert unit["tests"] == expected.tests
    assert bool(unit["left_behind"]) == bool(expected.left_behind)
    assert expected.left_behind in " ".join(unit["left_behind"])
    for shown in unit["left_behind"]:
        pid, _, command = shown.split(" ", 2)
        assert process_tree.command_line(int(pid)) != command, "named and not killed"


@pytest.mark.parametrize("path", EXPECTED)
def test_it_has_its_outcome(path: str, main_run: Run) -> None:
    assert_expected(main_run, path, EXPECTED[path])


def test_outcomes_add_up_and_nobody_lives(main_run: Run) -> None:
    summary = main_run.summary
    assert main_run.exit_code == 1
    assert sum(summary["outcomes"].values()) == summary["num_units"] == len(EXPECTED)
    attempt = f"RLHARNESS_ATTEMPT={summary['run_id']}".encode()
    living = []
    for process in process_tree.all_processes():
        try:
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:  # gone meanwhile
            continue
        if attempt in environ:
            living.append(process)
    assert living == []


def test_what_is_asked_for_and_what_there_is_are_quoted(main_run: Run) -> None:
    reason = main_run.unit("test_wants_16_gpus.py")["reason"]
    assert "16 GPUs" in reason
    assert "2 x sim" in reason
    assert main_run.unit("test_wants_16_gpus.py")["for_want_of_gpus"]


def test_200_mb_of_output_are_kept_and_their_ends_shown(main_run: Run) -> None:
    log = Path(main_run.unit("test_prints_200_mb.py")["directory"], "output.log")
    assert log.stat().st_size > 200_000_000
    assert len(main_run.shown) < 12_000_000
    assert re.search(r"\[\.\.\. \d+\.\d MB left out here; the whole output is in ", main_run.shown)
    assert "so that it is shown" in main_run.shown


def test_odd_bytes_are_kept_and_do_nothing_to_the_terminal(main_run: Run) -> None:
    log = Path(main_run.unit("test_prints_no_text.py")["directory"], "output.log")
    assert bytes(range(256)) + b"\xff\xfe\0\x1b[2J" in log.read_bytes()
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", main_run.shown)
    assert "red" in main_run.shown


def test_stacks_of_a_hung_file_name_the_place(main_run: Run) -> None:
    stacks = Path(main_run.unit("test_hangs_in_python.py")["directory"], "stacks.txt").read_text()
    assert "== process" in stacks
    if "no Python stack" not in stacks:
        assert "test_hangs (test_hangs_in_python.py:" in stacks


def test_a_card_with_memory_left_is_quarantined(card_run: Run) -> None:
    for path, expected in EXPECTED_WITH_A_DRIVER.items():
        assert_expected(card_run, path, expected)
    [gpu] = card_run.summary["quarantined"]
    assert gpu["gpu_id"] == CARD
    assert gpu["reason"].startswith("20.0 GB above its baseline, held by no process")
    assert card_run.exit_code == 13


def test_wanting_more_cards_than_there_are_has_an_exit_code_of_its_own(tmp_path: Path, tmpdir_root: Path) -> None:
    wants = {"test_wants_16_gpus.py": EXPECTED["test_wants_16_gpus.py"]}
    for option, exit_code in (("--no-allow-missing-gpus", 14), ("--allow-missing-gpus", 0)):
        directory = tmp_path / option
        directory.mkdir()
        with start(directory, tmpdir_root, wants, "--gpus", "sim:8", option).process as process:
            assert process.wait() == exit_code


def test_a_full_tmpdir(tmp_path: Path) -> None:
    small = tempfile.mkdtemp(prefix="mis-", dir="/tmp")
    try:
        mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", small]
        mounted = subprocess.run(mount, check=False, capture_output=True)
        if mounted.returncode != 0:
            pytest.skip(f"no file system of its own can be mounted: {mounted.stderr.decode().strip()}")
        try:
            run = start(tmp_path, Path(small), EXPECTED_ON_A_SMALL_TMPDIR, "--gpus", "none")
            for path, expected in EXPECTED_ON_A_SMALL_TMPDIR.items():
                assert_expected(run, path, expected)
            assert os.listdir(small) == [], "it is emptied again"
        finally:
            subprocess.run(["umount", small], check=True)
    finally:
        os.rmdir(small)


def test_ray_that_nobody_stops(tmp_path: Path, tmpdir_root: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed", exc_type=ImportError)
    run = start(tmp_path, tmpdir_root, EXPECTED_WITH_RAY, "--gpus", "none", "--cpu-units", "2", "--timeout", "120")
    for path, expected in EXPECTED_WITH_RAY.items():
        assert_expected(run, path, expected)
