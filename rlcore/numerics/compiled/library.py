"""The kernels beside this file, compiled for this processor when they are first wanted, and kept: seconds, once.

A library is kept under a name made of all that it follows from, so that another compiler or processor has another.
"""

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rlcore.errors import KernelError
from rlcore.regular_file import read_regular

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.[ch]")))
FLAGS = (
    "-O3",
    "-march=native",
    "-fno-fast-math",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
)
"""None lets a compiler change a bit: no contraction, no other order of additions."""
COMPILERS = ("cc", "gcc", "clang")
_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_HEADS = (_FLOAT, _POINTER)
"""eps, turns."""
SIGNATURES = {
    "rms_norm": (*(_POINTER,) * 3, _FLOAT, _LONG, _LONG, *(_POINTER,) * 3),
    "rms_norm_backward": (*(_POINTER,) * 5, _LONG, _LONG, _POINTER, _POINTER),
    "linear": (*(_POINTER,) * 3, *(_LONG,) * 4, _POINTER),
    "linear_backward": (*(_POINTER,) * 3, *(_LONG,) * 4, *(_POINTER,) * 3),
    "layer_keeps": (_POINTER,),
    "layer_forward": (*(_POINTER,) * 5, _LONG, _POINTER, _POINTER),
    "layer_backward": (*(_POINTER,) * 6,),
    "uniforms": (_POINTER, _POINTER, _LONG, _LONG, _POINTER),
    "swiglu": (_POINTER, _LONG, _LONG, _POINTER),
    "swiglu_backward": (_POINTER, _POINTER, _LONG, _LONG, _POINTER, _POINTER),
    "attend": (*(_POINTER,) * 3, *_HEADS, _POINTER, *(_LONG,) * 6, _POINTER, _POINTER, _LONG, _LONG, *(_POINTER,) * 3),
    "attend_backward": (*(_POINTER,) * 7, *_HEADS, *(_LONG,) * 6, *(_POINTER,) * 3),
}


@cache
def library() -> ctypes.CDLL:
    """The compiled kernels of this process. Raises KernelError where there is no compiler, or it fails.

    What is kept is compiled anew where it is not, byte for byte, what was put there.
    """
    command = compiler()
    kept = directory() / f"kernels-{_name(command)}.so"
    make_private(kept.parent)
    if not _is_whole(kept):
        compile_into(kept, command)
    loaded = ctypes.CDLL(f"/proc/self/fd/{_opened(kept)}")
    for name, arguments in SIGNATURES.items():
        getattr(loaded, name).argtypes = arguments
    loaded.layer_keeps.restype = _LONG
    return loaded


def compiler() -> tuple[str, ...]:
    """What $CC says, else the first there is, else that of the package ziglang. Raises KernelError."""
    if given := os.environ.get("CC"):
        try:
            return tuple(shlex.split(given))
        except ValueError as error:
            raise KernelError(f"$CC is {given!r}: {error}", remedy=_REMEDY) from error
    for name in COMPILERS:
        if path := shutil.which(name):
            return (path,)
    if find_spec("ziglang"):
        return sys.executable, "-P", "-m", "ziglang", "cc"
    raise KernelError(
        "model.kernels is compiled, and there is no C compiler",
        legal=f"the command in $CC, or one of {', '.join(COMPILERS)}, ziglang",
        remedy="apt-get install gcc, or pip install 'rlharness[kernels]', which brings one; or model.kernels torch",
    )


def directory() -> Path:
    """Return the directory of libraries in the user's cache; a relative $XDG_CACHE_HOME is ignored, as specified."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "rlharness"


def make_private(cache: Path) -> None:
    """Make the directory of libraries one that only this user can write to, who loads code from it.

    Raises KernelError where it cannot be made, or belongs to another user.
    """
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = cache.lstat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o022:
            cache.chmod(0o700)
            for kept in cache.glob("kernels-*"):  # others may have put them there
                kept.unlink()
    except OSError as error:
        raise KernelError(
            f"the kernels cannot be compiled into {cache}: {error}",
            remedy=f"a directory that can be written in $XDG_CACHE_HOME; {_REMEDY}",
        ) from error
    if stat.S_ISLNK(found.st_mode):
        raise KernelError(
            f"{cache} is a link, which can lead elsewhere the next moment",
            legal="a directory of this user",
            remedy=f"set XDG_CACHE_HOME to the directory that it leads to; {_REMEDY}",
        )
    if found.st_uid != os.geteuid():
        raise KernelError(
            f"{cache} belongs to user {found.st_uid}, who could put other code there",
            legal="a directory of this user",
            remedy=f"set XDG_CACHE_HOME to a directory of your own; {_REMEDY}",
        )


def compile_into(kept: Path, command: tuple[str, ...], *flags: str) -> None:
    """Compile the sources; the file is there whole or not at all. Raises KernelError with what the compiler says."""
    sources = [str(source) for source in SOURCES if source.suffix == ".c"]
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            made = Path(scratch) / kept.name
            whole = [*command, *FLAGS, *flags, *sources, "-o", str(made), "-lm", "-lpthread"]
            done = subprocess.run(whole, capture_output=True, text=True, check=False)
            if done.returncode or not made.is_file():
                said = done.stderr[-2000:] or "it wrote nothing"
                raise KernelError(f"{shlex.join(whole)} ended with {done.returncode}:\n{said}", remedy=_REMEDY)
            recorded = made.with_suffix(".sha256")
            recorded.write_text(_digest(made))
            made.replace(kept)
            recorded.replace(kept.with_suffix(".sha256"))
    except OSError as error:
        raise KernelError(
            f"the kernels cannot be compiled into {kept.parent}: {error}",
            remedy=f"a directory that can be written in $XDG_CACHE_HOME; {_REMEDY}",
        ) from error


def _opened(kept: Path) -> int:
    """Return the descriptor of a library that this user has made and no other user can write to.

    It stays open: what is loaded is what was looked at, though another user may have moved the directory meanwhile.
    Raises KernelError for any other file.
    """
    try:
        fd = os.open(kept, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise KernelError(f"{kept} cannot be loaded: {error.strerror}", remedy=_REMEDY) from error
    found = os.fstat(fd)
    if found.st_uid == os.geteuid() and not found.st_mode & 0o022:
        return fd
    os.close(fd)
    raise KernelError(
        f"{kept} belongs to user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}: others can change it",
        legal="a file that only this user can write to",
        remedy=f"remove it; {_REMEDY}",
    )


_REMEDY = "another C compiler in $CC, or model.kernels torch"


def _is_whole(kept: Path) -> bool:
    """Whether it is what was put there, by the digest beside it."""
    recorded = kept.with_suffix(".sha256")
    try:
        return read_regular(recorded) == _digest(kept).encode()
    except OSError:  # not there, or not a file
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(read_regular(path)).hexdigest()


def _name(command: tuple[str, ...]) -> str:
    """A digest of sources, the command with its flags, the compiler's version and the processor."""
    digest = hashlib.sha256()
    for source in SOURCES:
        digest.update(read_regular(source))
    digest.update(shlex.join((*command, *FLAGS, _version(command), _processor())).encode())
    return digest.hexdigest()[:16]


def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise KernelError(f"{shlex.join(command)} cannot be run: {error}", remedy=_REMEDY) from error
    return done.stdout


def _processor() -> str:
    """What -march=native follows from."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    facts = {line for line in lines if line.startswith(("flags", "Features", "model", "cpu family", "vendor_id"))}
    return "\n".join([platform.machine(), *sorted(facts)])
