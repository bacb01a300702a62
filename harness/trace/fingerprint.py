"""The fingerprint of a program: everything outside its trace that its bits may depend on, read from this process.

`identity` is what its configuration means, and comes from the program; the other three are read here.
"""

import ctypes
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from xxhash import xxh3_128, xxh3_128_hexdigest

from harness.bits.files import open_regular
from harness.bits.levels import MOVE_BITS
from harness.bits.redaction import redact_fields
from harness.trace.manifest import Fingerprint, Part

CPU_INFO = Path("/proc/cpuinfo")
NVIDIA_DRIVER = Path("/sys/module/nvidia/version")
GIT_S = 30.0
ISA = ("sse", "ssse3", "avx", "fma", "f16c", "bmi", "amx", "asimd", "fphp", "sve", "sme", "bf16", "i8mm")
"""What flags begin with that mathematical libraries choose their code by."""
NO_ISA = "smep"
"""A protection of the kernel's memory that is called like Arm's matrix extension."""
CODE = (".py", ".pyx", ".pxd", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".so", ".sh", ".yaml", ".yml", ".toml")
"""Ends of names of untracked files that count: source and configuration. JSON is what runs write."""
WITHOUT_CONTENTS = ("--directory", "--no-empty-directory")
"""Options of git ls-files that list an untracked directory as one name, and look no further."""
MAX_FILES = 100
PERTURBING = ("PYTHONHASHSEED", "VLLM_ENABLE_V1_MULTIPROCESSING")
PERTURBING_ENDS = ("_NUM_THREADS", "_DYNAMIC")
"""Of the variables that move bits, those that say how work is spread, not how it is computed."""
_ENV_BYTES = 256
"""More than the fenv_t of any C library here."""
X86_MXCSR_OFFSET = 28
"""In the fenv_t of glibc and musl, after the 28 bytes of the x87 unit."""
X86_STICKY = 0x3F
"""Exceptions that have happened: history, not control."""
X86_ROUNDING = ("nearest", "down", "up", "zero")
ARM_ROUNDING = ("nearest", "up", "down", "zero")


def fingerprint(
    identity: Part, *, environ: Mapping[str, str], modules: Iterable[str], checkout: Path, world_size: int = 1
) -> Fingerprint:
    """All four parts, without secrets; takes up to a second.

    `environ` is the process's own; `modules` are those it has loaded, whose packages count; `checkout` is a directory
    of the code under test.
    """
    return Fingerprint(
        identity=redact_fields(identity),
        numerics=redact_fields(numerics(environ, modules)),
        subject=subject(checkout),
        perturbation=redact_fields(perturbation(environ, world_size)),
    )


def numerics(environ: Mapping[str, str], modules: Iterable[str]) -> dict[str, str]:
    """Return the numerics: processor, Python, C library, driver, packages, libraries, floating-point control state."""
    told = {
        "machine": platform.machine(),
        **processor(_read(CPU_INFO)),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libc": " ".join(platform.libc_ver()),
        "nvidia driver": _read(NVIDIA_DRIVER).strip() or "none",
        "floating point": control_state(),
    }
    told |= {f"variable {name}": environ[name] for name in sorted(MOVE_BITS & environ.keys()) if not _perturbs(name)}
    told |= {f"package {name}": version for name, version in packages(modules).items()}
    return told | {f"library {name}": build for name, build in mapped_libraries(MAPS).items()}


def perturbation(environ: Mapping[str, str], world_size: int) -> dict[str, str]:
    """Return how the work is distributed, which should not affect results at level `invariant`."""
    told = {"world size": str(world_size), "usable cores": str(len(os.sched_getaffinity(0)))}
    return told | {f"variable {name}": environ[name] for name in sorted(MOVE_BITS & environ.keys()) if _perturbs(name)}


def subject(checkout: Path, began_s: float | None = None) -> dict[str, str]:
    """Return the commit of a git checkout, and a digest of each file by which the code may differ from it.

    These are tracked files that were changed, and untracked ones that may be code: source and configuration beside
    tracked files, and modules that this process has loaded. A run writes traces, checkpoints and logs into directories
    of its own, which are not listed; what was written since this process began is its own too. Of neither can it be
    said that the code differs. If git does not report a commit, its value is the reason.

    `began_s` is when this process began, in the time of files.
    """
    try:
        commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
        root = Path(os.fsdecode(_git(checkout, "rev-parse", "--show-toplevel").rstrip(b"\n")))
        changed = _names(_git(root, "diff", "HEAD", "--name-only", "--no-ext-diff", "-z"))
        untracked = _names(_git(root, "ls-files", "--others", "--exclude-standard", *WITHOUT_CONTENTS, "-z"))
    except FileNotFoundError:
        return {"commit": "unknown: there is no git"}
    except subprocess.TimeoutExpired:
        return {"commit": f"unknown: git took over {GIT_S:.0f} s"}
    except subprocess.CalledProcessError:
        return {"commit": "unknown: no git checkout with a commit"}
    directories = tuple(name for name in untracked if name.endswith("/"))
    files = [name for name in untracked if name.endswith(CODE)]
    files += [name for name in _loaded(root) if name.startswith(directories)]
    began_s = _began_s() if began_s is None else began_s
    found = {name: root / name for name in sorted({*changed, *files}) if _modified_s(root / name) < began_s}
    digests = {f"file {name}": identify(path) for name, path in found.items()}
    shown, others = dict([*digests.items()][:MAX_FILES]), [*digests.items()][MAX_FILES:]
    more = {f"{len(others)} more files": xxh3_128_hexdigest(repr(others).encode())} if others else {}
    return {"commit": commit, **shown, **more}


def _names(output: bytes) -> list[str]:
    return [os.fsdecode(name) for name in output.split(b"\0")[:-1]]


def _loaded(root: Path) -> Iterator[str]:
    """Yield the files below a directory from which modules were loaded, relative to it."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).is_relative_to(root) and "site-packages" not in file:
            yield str(Path(file).relative_to(root))


def _began_s() -> float:
    """Return when this process began, in the time of files."""
    boot_s = int(_read(Path("/proc/stat")).partition("btime ")[2].split()[0])
    ticks = int(_read(Path("/proc/self/stat")).rpartition(")")[2].split()[19])
    return boot_s + ticks / os.sysconf("SC_CLK_TCK")


def _modified_s(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:  # deleted: a change
        return 0.0


def processor(cpu_info: str) -> dict[str, str]:
    """The model of the first processor, and the instruction sets it has that mathematical libraries look for."""
    lines = [line.partition(":") for line in cpu_info.partition("\n\n")[0].splitlines()]
    first = {name.strip(): value.strip() for name, _, value in lines}
    names = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
    flags = first.get("flags", first.get("Features", "")).split()
    return {
        "processor": " ".join(first[name] for name in names if name in first) or "unknown",
        "instruction sets": " ".join(sorted(flag for flag in flags if flag.startswith(ISA) and flag != NO_ISA))
        or "unknown",
    }


def packages(modules: Iterable[str]) -> dict[str, str]:
    """Versions of the installed packages that these modules are from, by name; without rlharness itself.

    The same as `importlib.metadata.packages_distributions` finds, which parses the metadata of every package.
    """
    loaded = {module.partition(".")[0] for module in modules}
    brought = [each for each in metadata.distributions() if not loaded.isdisjoint(_top_level(each))]
    names = {each.metadata["Name"] for each in brought} - {"rlharness"}
    return {name: metadata.version(name) for name in sorted(names)}


def _top_level(distribution: metadata.Distribution) -> set[str]:
    """Names of the modules that a package installs, as it declares them, or as its list of files has them."""
    if declared := distribution.read_text("top_level.txt"):
        return set(declared.split())
    record = distribution.read_text("RECORD")
    if record is None:
        paths = [str(path) for path in distribution.files or ()]
    else:  # path, digest, size; a path with a comma is quoted
        paths = [line.rsplit(",", 2)[0].strip('"') for line in record.splitlines()]
    first = {path.partition("/")[0] for path in paths if path.endswith((".py", ".so", ".pyd"))}
    return {each.partition(".")[0] for each in first}


def _perturbs(name: str) -> bool:
    return name in PERTURBING or name.endswith(PERTURBING_ENDS)


def _git(checkout: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(checkout), *arguments]
    return subprocess.run(command, capture_output=True, timeout=GIT_S, check=True).stdout


def _read(path: Path) -> str:
    """A file's text; empty where this kernel has no such file."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


def control_state(machine: str = "", environment: bytes | None = None) -> str:
    """Rounding and flushing of denormal numbers, in words and as a register: "nearest, denormals kept (mxcsr 1f80)".

    Asked of the C library, whose `fegetenv` reads the registers themselves. Libraries built with -Ofast change them as
    they are loaded, and each thread has its own.

    `machine` and `environment` (a fenv_t) are those of the calling thread where not given. "unknown" on a machine that
    is neither x86-64 nor 64-bit Arm.
    """
    machine = machine or platform.machine()
    environment = _fegetenv() if environment is None else environment
    if machine in ("x86_64", "AMD64"):
        (mxcsr,) = struct.unpack_from("<I", environment, X86_MXCSR_OFFSET)
        mxcsr &= ~X86_STICKY
        flushed = [name for bit, name in ((15, "results"), (6, "operands")) if mxcsr >> bit & 1]
        return _in_words(X86_ROUNDING[mxcsr >> 13 & 3], flushed, f"mxcsr {mxcsr:04x}")
    if machine in ("aarch64", "arm64"):
        (fpcr,) = struct.unpack_from("<I", environment)
        flushed = ["operands", "results"] if fpcr >> 24 & 1 else []
        return _in_words(ARM_ROUNDING[fpcr >> 22 & 3], flushed, f"fpcr {fpcr:08x}")
    return "unknown"


def _in_words(rounding: str, flushed: list[str], register: str) -> str:
    denormals = f"denormal {' and '.join(flushed)} flushed to zero" if flushed else "denormals kept"
    return f"{rounding}, {denormals} ({register})"


def _fegetenv() -> bytes:
    environment = ctypes.create_string_buffer(_ENV_BYTES)
    ctypes.CDLL("libm.so.6").fegetenv(environment)
    return environment.raw


# ----------------------------------------------------------------------------------------------------- mapped libraries
# The libraries that a process has mapped, by what they were built from: the build id that linkers leave in them.

MAPS = Path("/proc/self/maps")
EDGE_BYTES = 1_000_000
"""So much of either end stands for a library without a build id: hashing CUDA's whole would take seconds."""
MAX_TABLE_BYTES, MAX_NOTES_BYTES = 1 << 12, 1 << 16
"""So much is read of the program headers, and of each one's notes: linkers write a dozen headers, and short notes."""
_ELF64_LITTLE = b"\x7fELF\x02\x01"
_PT_NOTE = 4
_BUILD_ID = (3, b"GNU\0")
_OF_SYSTEM = (
    "nss|nssutil|nspr|plc|plds|softokn|freebl|freeblpriv|resolv|nsl|tirpc|pam|audit|cap|selinux|pcre|systemd|dbus|avahi"
    "|idn|unistring|psl|iconv|intl|uuid|readline|tinfo|ncursesw?"
    "|ssl|crypto|crypt|gnutls|hogweed|nettle|gcrypt|gpg-error|tasn|p11-kit|krb5|krb5support|k5crypto|gssapi_krb5|com_err"
    "|keyutils|sasl|ldap|lber|curl"
)
_PLUGINS = r"libnss_\w+|pam_(?:unix|systemd|sss|krb5|ldap|env|limits)"
_OF_PYTHON = "_ssl|_hashlib|_crypt|_uuid|_socket|grp|spwd|unicodedata|_multibytecodec|_codecs_[a-z]+|termios|readline"
_OF_ICONV = r"ISO[-_]?\d[\w-]*|UTF-\d+|(?:IBM|CP)\d+|EUC-[A-Z]+|KOI-?8(?:-[A-Z])?|BIG5\w*|GBK|GB18030|SJIS"
CANNOT_COMPUTE = re.compile(
    rf"library (?:lib(?:{_OF_SYSTEM})[0-9.-]|(?:{_PLUGINS}|{_OF_ICONV})\.so|(?:{_OF_PYTHON})\.cpython-)"
)
"""Libraries that look up names, encrypt or convert text: no result of a training depends on them."""


def deciding(numerics: Mapping[str, str]) -> dict[str, str]:
    """Return the numerics that can move bits: all but libraries that cannot compute."""
    return {name: value for name, value in numerics.items() if not CANNOT_COMPUTE.match(name)}


def mapped_libraries(maps: Path = MAPS) -> dict[str, str]:
    """Build ids by file name, of everything mapped to be executed; several of one name are joined by commas.

    "gone" for a file that is not there any more. OSError where `maps` cannot be read.
    """
    found: dict[str, set[str]] = {}
    for path in _executable_paths(maps.read_text("utf-8", errors="surrogateescape")):
        found.setdefault(path.name, set()).add(identify(path))
    return {name: ",".join(sorted(ids)) for name, ids in sorted(found.items())}


def identify(path: Path) -> str:
    """Return the identity of a library: its build id, else "edges:" and a digest of both ends, else "gone"."""
    try:
        with open_regular(path, follows_links=True) as file:
            return build_id(file) or _edges(file)
    except OSError:  # deleted, or of another mount namespace: that is told too
        return "gone"


def build_id(file: BinaryIO) -> str:
    """The GNU build id of a 64-bit little-endian ELF file, in hexadecimal digits; empty where it has none."""
    header = file.read(64)
    if len(header) < 64 or not header.startswith(_ELF64_LITTLE):
        return ""
    (table_offset,) = struct.unpack_from("<Q", header, 32)
    entry_bytes, num_entries = struct.unpack_from("<HH", header, 54)
    table = _read_at(file, table_offset, min(entry_bytes * num_entries, MAX_TABLE_BYTES))
    for at in range(0, len(table) - 55, max(56, entry_bytes)):
        kind, _, offset, _, _, size = struct.unpack_from("<IIQQQQ", table, at)
        if kind == _PT_NOTE:
            for note_kind, name, description in _notes(_read_at(file, offset, min(size, MAX_NOTES_BYTES))):
                if (note_kind, name) == _BUILD_ID:
                    return description.hex()
    return ""


def _read_at(file: BinaryIO, offset: int, num_bytes: int) -> bytes:
    """Bytes at an offset that stands in the file; none where it has no such place, or no file can have it."""
    if offset > file.seek(0, os.SEEK_END):
        return b""
    file.seek(offset)
    return file.read(num_bytes)


def _notes(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    at = 0
    while at + 12 <= len(data):
        name_bytes, description_bytes, kind = struct.unpack_from("<III", data, at)
        name_end = at + 12 + name_bytes
        start = at + 12 + (name_bytes + 3) // 4 * 4
        yield kind, data[at + 12 : name_end], data[start : start + description_bytes]
        at = start + (description_bytes + 3) // 4 * 4


def _edges(file: BinaryIO) -> str:
    size = file.seek(0, 2)
    digest = xxh3_128(str(size).encode())
    for start in (0, max(0, size - EDGE_BYTES)):
        file.seek(start)
        digest.update(file.read(EDGE_BYTES))
    return f"edges:{digest.hexdigest()}"


def _executable_paths(maps: str) -> list[Path]:
    """Each file that is mapped to be executed, once; without what the kernel itself maps."""
    lines = [line.split(maxsplit=5) for line in maps.splitlines()]
    paths = [fields[5] for fields in lines if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/")]
    return [Path(path.removesuffix(" (deleted)")) for path in dict.fromkeys(paths)]
