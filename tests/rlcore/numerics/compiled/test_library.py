"""The library is compiled once, kept under a name of its own, whole or not at all; what hinders that is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.errors import KernelError
from rlcore.numerics.compiled import library as module

pytestmark = [pytest.mark.needs_compiler, pytest.mark.full]

LOADS = "from rlcore.numerics.compiled.library import library; library()"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that has all names, and can be compiled in no time."""
    source = tmp_path_factory.mktemp("empty") / "empty.c"
    source.write_text("".join(f"void {name}(void) {{}}\n" for name in module.SIGNATURES))
    made = source.with_suffix(".so")
    subprocess.run([*module.compiler(), "-fPIC", "-shared", str(source), "-o", str(made)], check=True)
    return made


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is kept there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "cache" / "rlharness"


class Compiler:
    """A command that says its version, and writes down how often it is called for more."""

    def __init__(self, path: Path, does: str, *, version: str = "1") -> None:
        self.path = path
        self.calls = path.with_suffix(".calls")
        path.write_text(
            f'#!/bin/sh\ncase "$*" in *--version) echo {version}; exit;; esac\necho "$*" >> {self.calls}\n'
            f'while [ "$1" != -o ]; do shift; done\n{does}\n'
        )
        path.chmod(0o755)

    @property
    def num_calls(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0


@pytest.fixture
def copying(tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """$CC, which gives the library that is there already."""
    made = Compiler(tmp_path / "copying", f'cp {whole} "$2"')
    monkeypatch.setenv("CC", str(made.path))
    return made


def load() -> None:
    """As a new process would."""
    module.library.__wrapped__()


# ----------------------------------------------------------------------------------------------------------- it is kept


def test_it_is_compiled_once_and_kept(copying: Compiler, own_cache: Path) -> None:
    for _ in range(2):
        load()
    subprocess.run([sys.executable, "-c", LOADS], check=True)
    assert copying.num_calls == 1
    (kept,) = own_cache.glob("*.so")
    assert kept.suffix == ".so"


def test_a_process_loads_it_once(copying: Compiler, own_cache: Path) -> None:
    module.library.cache_clear()
    try:
        assert module.library() is module.library()
    finally:
        module.library.cache_clear()
    assert copying.num_calls == 1


def test_what_it_follows_from_is_in_its_name(
    copying: Compiler, own_cache: Path, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change compiles another one, and the first is still kept."""
    load()
    Compiler(copying.path, f'cp {whole} "$2"', version="2")  # the same command, another version
    load()
    assert copying.num_calls == 2
    monkeypatch.setenv("CC", f"{copying.path} -O1")  # the same compiler, another flag
    load()
    assert copying.num_calls == 3
    source = tmp_path / "more.c"
    source.write_text("int more;")
    with monkeypatch.context() as patch:
        patch.setattr(module, "SOURCES", (*module.SOURCES, source))
        load()
        source.write_text("int other;")
        load()
    assert copying.num_calls == 5
    with monkeypatch.context() as patch:
        patch.setattr(module, "_processor", lambda: "another")
        load()
    assert copying.num_calls == 6
    load()
    assert copying.num_calls == 6
    assert len(list(own_cache.glob("*.so"))) == 6


def test_all_sources_and_flags_are_given_to_the_compiler(copying: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", f"{copying.path} -DRLCORE='a b'")
    load()
    told = copying.calls.read_text().split()
    assert {str(source) for source in module.SOURCES if source.suffix == ".c"} < set(told)
    assert told[:2] == ["-DRLCORE=a", "b"], "$CC is a command with arguments"
    assert set(module.FLAGS) < set(told)


def test_two_processes_at_once_leave_one_whole_file(
    tmp_path: Path, own_cache: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has written half of it when the other begins: neither sees the other's, nor is in its way."""
    are_two = f"[ $(wc -l < {tmp_path}/slow.calls) -ge 2 ]"
    waits = f"n=0; until {are_two}; do n=$((n + 1)); [ $n -lt 1000 ] || exit 3; sleep 0.02; done"
    slow = Compiler(tmp_path / "slow", f'head -c 1000 {whole} > "$2"\n{waits}\ncp {whole} "$2"')
    monkeypatch.setenv("CC", str(slow.path))
    running = [subprocess.Popen([sys.executable, "-c", LOADS], stderr=subprocess.PIPE) for _ in range(2)]
    told = [each.communicate(timeout=60)[1].decode() for each in running]
    assert [each.returncode for each in running] == [0, 0], told
    (kept,) = own_cache.glob("*.so")
    assert kept.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "emptied", "a bit flipped", "its digest gone"])
def test_what_is_not_what_was_put_there_is_compiled_anew(damage: str, copying: Compiler, own_cache: Path) -> None:
    load()
    (kept,) = own_cache.glob("*.so")
    whole_bytes = kept.read_bytes()
    middle = len(whole_bytes) // 2
    flipped = whole_bytes[:middle] + bytes([whole_bytes[middle] ^ 1]) + whole_bytes[middle + 1 :]
    kept.unlink()  # it is mapped here
    kept.write_bytes({"cut": whole_bytes[:-1], "emptied": b"", "a bit flipped": flipped}.get(damage, whole_bytes))
    if damage == "its digest gone":
        kept.with_suffix(".sha256").unlink()
    load()
    assert (kept.read_bytes(), copying.num_calls) == (whole_bytes, 2)


def test_a_directory_that_is_not_absolute_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert module.directory() == tmp_path / ".cache" / "rlharness"


# ------------------------------------------------------------------------------------------------- what hinders is told


@pytest.mark.parametrize(
    ("cc", "told"),
    [("gcc '", "No closing quotation"), ("false", "ended with 1:\nit wrote nothing"), ("true", "it wrote nothing")],
)
def test_a_command_that_is_no_compiler_is_told(cc: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", cc)
    with pytest.raises(KernelError, match=told) as caught:
        load()
    assert "another C compiler in $CC" in caught.value.remedy


def test_a_directory_in_its_place_is_told(copying: Compiler, own_cache: Path) -> None:
    load()
    (kept,) = own_cache.glob("*.so")
    kept.unlink()
    kept.mkdir()
    with pytest.raises(KernelError, match=str(own_cache)) as caught:
        load()
    assert "$XDG_CACHE_HOME" in caught.value.remedy


def test_no_compiler_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(KernelError, match="there is no C compiler") as caught:
        load()
    assert caught.value.legal == "the command in $CC, or one of cc, gcc, clang, ziglang"
    assert "apt-get install gcc" in caught.value.remedy and "model.kernels torch" in caught.value.remedy


@pytest.mark.full
def test_a_compiler_in_a_wheel_is_taken_where_there_is_no_other(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("ziglang", reason="pip install 'rlharness[kernels]'")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.compiler() == (sys.executable, "-P", "-m", "ziglang", "cc")
    load()
    (kept,) = own_cache.glob("*.so")
    assert kept.stat().st_size > 10_000


@pytest.mark.parametrize("name", module.COMPILERS)
def test_the_first_there_is_is_taken(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for each in module.COMPILERS[module.COMPILERS.index(name) :]:
        Compiler(tmp_path / each, "exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.compiler() == (str(tmp_path / name),)


def test_a_command_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc -O1")
    with pytest.raises(KernelError, match="/nowhere/cc -O1 cannot be run") as caught:
        load()
    assert "$CC" in caught.value.remedy


def test_what_a_compiler_says_is_told(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Compiler(tmp_path / "failing", 'echo half > "$2"; echo "no such thing as -march" >&2; exit 4')
    monkeypatch.setenv("CC", str(failing.path))
    with pytest.raises(KernelError, match=r"(?s)-ffp-contract=off .*ended with 4:\nno such thing as -march"):
        load()
    assert not list(own_cache.glob("*.so")), "half a file is no library"


def test_a_source_that_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the compiler that is here."""
    source = tmp_path / "wrong.c"
    source.write_text("int wrong(")
    monkeypatch.setattr(module, "SOURCES", (source,))
    with pytest.raises(KernelError, match=r"wrong\.c:1"):
        load()


def test_a_directory_that_cannot_be_written_is_told(copying: Compiler, own_cache: Path) -> None:
    own_cache.parent.mkdir()
    own_cache.write_text("a file")
    with pytest.raises(KernelError, match="cannot be compiled into") as caught:
        load()
    assert str(own_cache) in caught.value.what and "$XDG_CACHE_HOME" in caught.value.remedy


def test_it_is_kept_in_the_users_cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.directory() == own_cache
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/somewhere")
    assert module.directory() == Path("/somewhere/.cache/rlharness")


def test_a_cache_that_others_can_write_to_is_closed_and_emptied(copying: Compiler, own_cache: Path) -> None:
    own_cache.mkdir(parents=True, exist_ok=True)
    own_cache.chmod(0o777)
    (own_cache / "kernels-0.so").write_bytes(b"another user's")
    load()
    assert own_cache.stat().st_mode & 0o077 == 0
    assert not (own_cache / "kernels-0.so").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_a_cache_of_another_user_is_refused(copying: Compiler, own_cache: Path) -> None:
    own_cache.mkdir(parents=True, exist_ok=True)
    os.chown(own_cache, 65534, 65534)
    with pytest.raises(KernelError, match="belongs to user 65534") as refused:
        load()
    assert "XDG_CACHE_HOME" in str(refused.value)


def test_a_cache_that_is_a_link_is_refused(copying: Compiler, own_cache: Path, tmp_path: Path) -> None:
    """Its owner can have it lead to other code, once it was looked at."""
    (tmp_path / "mine").mkdir(mode=0o700)
    own_cache.parent.mkdir()
    own_cache.symlink_to(tmp_path / "mine")
    with pytest.raises(KernelError, match="is a link"):
        load()
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("change", ["others write to it", "another user's", "a link"])
def test_a_library_that_others_can_change_is_refused(
    change: str, copying: Compiler, own_cache: Path, whole: Path
) -> None:
    load()
    (kept,) = own_cache.glob("*.so")
    if change == "others write to it":
        kept.chmod(0o666)
    elif change == "a link":
        kept.unlink()
        kept.symlink_to(whole)
    elif os.geteuid():
        pytest.skip("only root can give a file to another user")
    else:
        os.chown(kept, 65534, 65534)
    with pytest.raises(KernelError, match=r"cannot be loaded|others can change it"):
        load()


def test_what_was_looked_at_is_loaded(copying: Compiler, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user who can write to the directory above moves it away, and puts one of the same name there."""
    opened = module._opened

    def replace_then(kept: Path) -> int:
        fd = opened(kept)
        kept.unlink()
        kept.write_bytes(b"code of another user")
        return fd

    monkeypatch.setattr(module, "_opened", replace_then)
    load()
