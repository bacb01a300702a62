"""Output of `rlharness profile`: a line for each probe, the need and the marker to write; or JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from harness.core.text import count, one_line
from harness.render.gpu_memory import gb_text
from harness.runner.memory_profile import LimitProbe, MemoryProfile, ProfileKind

VERSION = 1
HEADS = {
    ProfileKind.FAILS_ANYWAY: "does not pass without a limit either",
    ProfileKind.NOT_LIMITED: "passes, but PyTorch does not initialise CUDA in its process: no limit applies to it",
    ProfileKind.UNSTABLE: "gave different outcomes with the same limit: it is flaky",
}


def limit_line(number: int, probe: LimitProbe) -> str:
    """Return the line about one probe: its limit, and whether the test passed."""
    limit = f"with {gb_text(probe.limit_bytes)}" if probe.limit_bytes else "without a limit"
    why = f": {one_line(probe.reason, 200)}" if probe.reason and not probe.passed else ""
    shown = "" if probe.peak_bytes is None else f", {gb_text(probe.peak_bytes)} in use at its peak"
    return f"probe {number}: {'passes' if probe.passed else 'fails'} {limit}, {probe.duration_s:.1f} s{shown}{why}"


def profile_text(found: MemoryProfile, *, colour: bool) -> str:
    """Return the need, the marker and the effort."""
    return "\n".join(_lines(found, colour))


def _lines(found: MemoryProfile, colour: bool) -> Iterator[str]:
    head = HEADS.get(found.kind) or f"needs {found.memory_gb:g} GB of a GPU"
    head = f"{one_line(found.test)} {head}"
    yield f"\x1b[1m{head}\x1b[0m" if colour else head
    if found.kind is ProfileKind.FOUND:
        yield f"  it passes with {gb_text(found.limit_bytes)} for PyTorch's allocator; the rest is for the CUDA context"
        yield f"marker: {found.marker}"
    each = " each" if found.num_gpus > 1 else ""
    total_s = sum(probe.duration_s for probe in found.probes)
    yield f"{count(len(found.probes), 'probe')} in {total_s:.1f} s on {count(found.num_gpus, 'GPU')}{each}: {found.gpu}"


def profile_json(found: MemoryProfile) -> dict[str, Any]:
    """The same in plain values only."""
    return {"version": VERSION, "exit_code": int(found.exit_code), **asdict(found)}
