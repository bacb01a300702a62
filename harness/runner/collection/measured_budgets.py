"""Budgets of `--workers-per-gpu auto`: from the GPU memory that earlier runs have measured.

Pure. A file whose peak is known gets a budget above it; a file without a known peak gets a GPU of its own, and so is
measured in this run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.core.need import Need
from harness.core.text import count

MARGIN = 0.1
"""Share of a measured peak that its budget is larger: samples miss what lasts less than a quarter of a second."""
_MB = 10**6
OWN_GPU = Need(gpus=1)


@dataclass(frozen=True, slots=True)
class MeasuredBudgets:
    """Needs of files that have none of their own."""

    needs: dict[str, Need]
    """By path."""
    memory_bytes: int
    """Memory of the smallest GPU of the run."""
    max_sharing: int
    """Files that share a GPU at most, whatever their peaks."""

    @property
    def shared(self) -> list[int]:
        """Budgets in bytes of the files that share GPUs, smallest first."""
        return sorted(need.budget_bytes for need in self.needs.values() if need.shared)

    @property
    def num_sharing(self) -> tuple[int, int]:
        """How many files with the largest budget, and with the smallest, share one GPU; (1, 1) where none shares."""
        if not self.shared:
            return 1, 1
        return self.memory_bytes // self.shared[-1], self.memory_bytes // self.shared[0]

    def note(self) -> str:
        """Return how many files share each GPU, and from what this follows."""
        budgets, num_own = self.shared, len(self.needs) - len(self.shared)
        memory = f"{self.memory_bytes / 1e9:g} GB"
        if not budgets:
            return (
                "--workers-per-gpu auto: 1 file on each GPU, because the history has no measured GPU memory of these"
                f" files that fits a GPU of {memory}"
            )
        few, many = self.num_sharing
        amount = count(few, "file") if few == many else f"{few} to {count(many, 'file')}"
        low, high = f"{budgets[0] / 1e9:.3g}", f"{budgets[-1] / 1e9:.3g}"
        own = f"; a GPU of its own for {count(num_own, 'file')} without a measured peak that fits" if num_own else ""
        return (
            f"--workers-per-gpu auto: {amount} on each GPU of {memory}, from the measured peaks of"
            f" {count(len(budgets), 'file')}: budgets of {low if low == high else f'{low} to {high}'} GB, each"
            f" {MARGIN:.0%} above its peak, and at most {count(self.max_sharing, 'file')} for the CPU slots{own}"
        )


def size_budgets(
    paths: Iterable[str], peaks: Mapping[str, int], *, memory_bytes: int, max_sharing: int
) -> MeasuredBudgets:
    """Return the needs of files: budgets from measured `peaks` (bytes, by path), on GPUs of at least `memory_bytes`.

    No set of files whose budgets fit a GPU exceeds it by their peaks, and at most `max_sharing` fit one of that size.
    """
    least_bytes = -(-memory_bytes // max_sharing)
    needs = {}
    for path in paths:
        budget_bytes = max(round(peaks.get(path, 0) * (1 + MARGIN)), least_bytes)
        budget_mb = -(-budget_bytes // _MB)
        is_shared = path in peaks and budget_mb * _MB <= memory_bytes
        needs[path] = Need(gpus=1, memory_gb=budget_mb / 1000, shared=True) if is_shared else OWN_GPU
    return MeasuredBudgets(needs, memory_bytes, max_sharing)
