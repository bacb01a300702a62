"""The fingerprint: read from this process, and from files of other machines."""

import ctypes
import math
import os
import re
import struct
import subprocess
import sys
import threading
import tracemalloc
import types
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest

from harness.bits.redaction import REDACTED
from harness.trace import fingerprint as read
from harness.trace.fingerprint import EDGE_BYTES, X86_MXCSR_OFFSET, control_state, identify, mapped_libraries

# --------------------------------------------------------------------------------------------- floating-point control


@pytest.mark.parametrize(
    ("mxcsr", "told"),
    [
        (0x1F80, "nearest, denormals kept (mxcsr 1f80)"),
        (0x1FBF, "nearest, denormals kept (mxcsr 1f80)"),
        (0x9FC0, "nearest, denormal results and operands flushed to zero (mxcsr 9fc0)"),
        (0x9F80, "nearest, denormal results flushed to zero (mxcsr 9f80)"),
        (0x3F80, "down, denormals kept (mxcsr 3f80)"),
        (0x7F80, "zero, denormals kept (mxcsr 7f80)"),
    ],
)
def test_the_state_of_x86_in_words(mxcsr: int, told: str) -> None:
    environment = bytes(X86_MXCSR_OFFSET) + struct.pack("<I", mxcsr)
    assert control_state("x86_64", environment) == told


def test_the_state_of_other_machines() -> None:
    assert control_state("aarch64", struct.pack("<II", 0, 0x10)) == "nearest, denormals kept (fpcr 00000000)"
    flushed = "up, denormal operands and results flushed to zero (fpcr 01400000)"
    assert control_state("aarch64", struct.pack("<II", 1 << 24 | 1 << 22, 0)) == flushed
    assert control_state("riscv64", bytes(8)) == "unknown"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="sets the register of x86-64")
def test_the_state_is_that_of_the_thread_that_asks() -> None:
    libm = ctypes.CDLL("libm.so.6")
    found = []
    halves = [0.5]  # no constant, which would be computed by the compiler

    def flush_and_ask() -> None:
        environment = ctypes.create_string_buffer(256)
        libm.fegetenv(environment)
        (mxcsr,) = struct.unpack_from("<I", environment, X86_MXCSR_OFFSET)
        struct.pack_into("<I", environment, X86_MXCSR_OFFSET, mxcsr | 0x8040)
        libm.fesetenv(environment)
        found.extend([control_state(), 1e-310 * halves[0]])

    thread = threading.Thread(target=flush_and_ask)
    thread.start()
    thread.join()
    assert found == ["nearest, denormal results and operands flushed to zero (mxcsr 9fc0)", 0.0]
    assert control_state() == "nearest, denormals kept (mxcsr 1f80)"
    assert 1e-310 * halves[0] > 0


# ----------------------------------------------------------------------------------------------------------- packages


def packages_by_the_standard_library(modules: Iterable[str]) -> dict[str, str]:
    brought_by = metadata.packages_distributions()
    names = {name for module in modules for name in brought_by.get(module, ())} - {"rlharness"}
    return {name: metadata.version(name) for name in names}


@pytest.mark.full
def test_packages_are_those_that_the_standard_library_finds_for_the_same_modules() -> None:
    every_module = set(metadata.packages_distributions())
    found = read.packages(f"{module}.inner" for module in every_module)
    assert found == packages_by_the_standard_library(every_module)
    assert len(found) > 10
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert read.packages(sys.modules) == packages_by_the_standard_library(loaded)


def test_a_package_is_found_by_its_declaration_by_its_files_and_without_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {
        "declaring": {"top_level.txt": "first\nsecond\n", "RECORD": "other/__init__.py,,\n"},
        "recording": {"RECORD": 'alone.py,sha256=x,3\n"folder/a,b.py",,\n../../bin/tool,,\nnative.cpython-311.so,,\n'},
        "empty": {},
    }
    for name, files in listed.items():
        directory = tmp_path / f"{name}-1.0.dist-info"
        directory.mkdir()
        for file, text in {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", **files}.items():
            (directory / file).write_text(text, "utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def names(*modules: str) -> set[str]:
        return set(read.packages(modules))

    assert names("first") == names("second.part") == {"declaring"}
    assert names("alone") == names("folder") == names("native") == {"recording"}
    assert names("other", "tool", "empty", "bin") == set()


# ---------------------------------------------------------------------------------------------------------- libraries


def test_the_libraries_of_this_process_are_those_that_readelf_sees() -> None:
    found = mapped_libraries()
    (libc,) = [line.split()[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so.6" in line][:1]
    try:
        notes = subprocess.run(["readelf", "-n", libc], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        pytest.skip("readelf is not installed")
    match = re.search(r"Build ID: (\w+)", notes)
    assert match
    assert found["libc.so.6"] == match[1]
    assert any(name.startswith("_xxhash") for name in found)


def test_a_library_without_a_build_id_is_told_by_its_ends(tmp_path: Path) -> None:
    data = bytearray(3 * EDGE_BYTES)
    told = []
    for change in (None, 0, len(data) - 1):
        if change is not None:
            data[change] ^= 1
        (tmp_path / "lib.so").write_bytes(data)
        told.append(identify(tmp_path / "lib.so"))
    assert len(set(told)) == 3
    assert all(text.startswith("edges:") for text in told)
    assert identify(tmp_path / "none.so") == "gone"


def test_maps_are_read_with_their_oddities(tmp_path: Path) -> None:
    (tmp_path / "lib a.so").write_bytes(b"x")
    maps = tmp_path / "maps"
    maps.write_text(
        f"7f00-7f01 r-xp 00000000 08:01 1   {tmp_path}/lib a.so\n"
        f"7f01-7f02 r--p 00000000 08:01 1   {tmp_path}/data.bin\n"
        f"7f02-7f03 r-xp 00000000 08:01 2   {tmp_path}/old.so (deleted)\n"
        "7f03-7f04 r-xp 00000000 00:00 0   [vdso]\n7f04-7f05 rwxp 00000000 00:00 0\n"
    )
    found = mapped_libraries(maps)
    assert list(found) == ["lib a.so", "old.so"]
    assert found["old.so"] == "gone"


# ---------------------------------------------------------------------------------------------------------- the parts


def test_all_four_parts_without_secrets(tmp_path: Path) -> None:
    environ = {"OMP_NUM_THREADS": "3", "MKL_CBWR": "AVX2", "HF_TOKEN": "hush-hush", "PYTHONHASHSEED": "0", "HOME": "/a"}
    identity = {"seed": "7", "hub_token": "hush-hush"}
    found = read.fingerprint(identity, environ=environ, modules=["pytest", "os"], checkout=tmp_path, world_size=2)
    assert found.identity == {"seed": "7", "hub_token": REDACTED}
    assert found.perturbation == {
        "world size": "2",
        "usable cores": str(len(os.sched_getaffinity(0))),
        "variable OMP_NUM_THREADS": "3",
        "variable PYTHONHASHSEED": "0",
    }
    assert found.numerics["variable MKL_CBWR"] == "AVX2"
    assert found.numerics["package pytest"] == metadata.version("pytest")
    assert found.numerics["floating point"].startswith("nearest")
    assert not {name for name in found.numerics if "xxhash" in name} - {
        name for name in found.numerics if name.startswith("library ")
    }
    assert found.subject == {"commit": "unknown: no git checkout with a commit"}
    assert "hush-hush" not in repr(found)


def test_what_is_not_committed_is_part_of_the_subject(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        own = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        subprocess.run(["git", "-C", str(tmp_path), *own, *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    git("add", ".")
    git("commit", "-m", "a")
    assert [*read.subject(tmp_path)] == ["commit"]
    assert re.fullmatch("[0-9a-f]{40}", read.subject(tmp_path)["commit"])
    (tmp_path / "t1").mkdir()
    written = ("t1/rank-0.log", "t1/copy.py", "t1/manifest.json", "results.json", "model.pt")
    for name in written:  # by an earlier run
        (tmp_path / name).write_text("x")
    told = []
    for path, text in (("a.log", "ignored"), ("a.py", "x = 2\n"), ("b.py", "y = 1\n"), ("b.py", "y = 2\n")):
        (tmp_path / path).write_text(text)
        (tmp_path / "sub").mkdir(exist_ok=True)
        told.append(read.subject(tmp_path / "sub", math.inf))
    assert [[*each][1:] for each in told] == [[], ["file a.py"], *[["file a.py", "file b.py"]] * 2]
    assert told[2]["file a.py"] == told[3]["file a.py"]
    assert told[2]["file b.py"] != told[3]["file b.py"]
    assert [*read.subject(tmp_path)] == ["commit"], "written since this process began"
    assert [*read.subject(tmp_path, math.inf)] == ["commit", "file a.py", "file b.py"]


def test_a_loaded_module_in_an_untracked_directory_is_part_of_the_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    own = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(tmp_path), *own, "commit", "--quiet", "--allow-empty", "-m", "a"], check=True)
    for name in ("loaded", "idle"):
        (tmp_path / "package").mkdir(exist_ok=True)
        (tmp_path / "package" / f"{name}.py").write_text("")
    module = types.ModuleType("loaded")
    module.__file__ = str(tmp_path / "package" / "loaded.py")
    monkeypatch.setitem(sys.modules, "loaded", module)
    assert [*read.subject(tmp_path, math.inf)] == ["commit", "file package/loaded.py"]


@pytest.mark.timeout(60)
def test_untracked_files_that_never_end_are_not_waited_for(tmp_path: Path) -> None:
    """A link to a FIFO, and an ELF file whose header claims a table of 4 GB."""
    repository = tmp_path / "repository"
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    own = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(repository), *own, "commit", "--quiet", "--allow-empty", "-m", "a"], check=True)
    os.mkfifo(tmp_path / "pipe")
    (repository / "link").symlink_to(tmp_path / "pipe")
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 32, 64)
    struct.pack_into("<HH", header, 54, 65535, 65535)
    (repository / "large.so").write_bytes(header)
    os.truncate(repository / "large.so", 5 << 30)
    tracemalloc.start()
    try:
        found = read.subject(repository, math.inf)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found["file large.so"].startswith("edges:")
    assert peak_bytes < 1 << 26


def test_without_git_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read.subject(tmp_path) == {"commit": "unknown: there is no git"}
