"""The fingerprint of a program: everything outside its trace that its bits may depend on, read from this process.

`identity` is what its configuration means, and comes from the program; the other three are read here.
"""

import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

from xxhash import xxh3_128

from harness.bits.levels import MOVE_BITS
from harness.bits.redaction import redact_fields
from harness.trace.floating_point import control_state
from harness.trace.manifest import Fingerprint, Part
from harness.trace.mapped_libraries import MAPS, identify, mapped_libraries

CPU_INFO = Path("/proc/cpuinfo")
NVIDIA_DRIVER = Path("/sys/module/nvidia/version")
GIT_S = 30.0
ISA = ("sse", "ssse3", "avx", "fma", "f16c", "bmi", "amx", "asimd", "fphp", "sve", "sme", "bf16", "i8mm")
"""What flags begin with that mathematical libraries choose their code by."""
NO_ISA = "smep"
"""A protection of the kernel's memory that is called like Arm's matrix extension."""
PERTURBING = ("PYTHONHASHSEED", "VLLM_ENABLE_V1_MULTIPROCESSING")
PERTURBING_ENDS = ("_NUM_THREADS", "_DYNAMIC")
"""Of the variables that move bits, those that say how work is spread, not how it is computed."""


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


def subject(checkout: Path) -> dict[str, str]:
    """Return the commit of a git checkout, and a digest of its uncommitted changes.

    If git does not report a commit, its value is the reason.
    """
    try:
        commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
        root = Path(os.fsdecode(_git(checkout, "rev-parse", "--show-toplevel").rstrip(b"\n")))
        changes = _git(root, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color")
        untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")[:-1]
    except FileNotFoundError:
        return {"commit": "unknown: there is no git"}
    except subprocess.TimeoutExpired:
        return {"commit": f"unknown: git took over {GIT_S:.0f} s"}
    except subprocess.CalledProcessError:
        return {"commit": "unknown: no git checkout with a commit"}
    if not changes and not untracked:
        return {"commit": commit, "uncommitted": "nothing"}
    digest = xxh3_128(changes)
    for name in sorted(untracked):
        digest.update(name + b"\0" + identify(root / os.fsdecode(name)).encode() + b"\0")
    return {"commit": commit, "uncommitted": digest.hexdigest()}


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
