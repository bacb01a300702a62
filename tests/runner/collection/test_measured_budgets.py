"""Budgets of `--workers-per-gpu auto`: no GPU is oversubscribed by the measured peaks, whatever is leased together."""

import random

from hypothesis import given
from hypothesis import strategies as st

from harness.core.need import Need
from harness.machine.inventory import Gpu, Inventory
from harness.runner.collection.measured_budgets import OWN_GPU, size_budgets
from harness.runner.schedule.leases import Lease, LeaseTable

GB = 10**9
peaks_of_files = st.dictionaries(st.sampled_from([f"test_{n}.py" for n in range(12)]), st.integers(1, 100 * GB))


@given(
    peaks_of_files, st.integers(GB, 90 * GB), st.integers(1, 8), st.integers(1, 3), st.randoms(use_true_random=False)
)
def test_no_gpu_is_oversubscribed_by_the_measured_peaks(
    peaks: dict[str, int], memory_bytes: int, max_sharing: int, num_gpus: int, rng: random.Random
) -> None:
    paths = [f"test_{n}.py" for n in range(15)]  # some were never measured
    sized = size_budgets(paths, peaks, memory_bytes=memory_bytes, max_sharing=max_sharing)
    assert list(sized.needs) == paths
    table = LeaseTable(Inventory(tuple(Gpu(f"g{n}", n, "A", memory_bytes / 1e9) for n in range(num_gpus))), 4)
    held: list[tuple[str, Lease]] = []
    for _ in range(40):
        if held and rng.random() < 0.3:
            table.give_back(held.pop(rng.randrange(len(held)))[1])
        free = [path for path in paths if path not in {path for path, _ in held}]
        path = rng.choice(free) if free else ""
        if path and (lease := table.lease(sized.needs[path])) is not None:
            held.append((path, lease))
        for number in range(num_gpus):
            on_it = [path for path, lease in held if lease.gpu_ids == (f"g{number}",)]
            known = [path for path in on_it if path in peaks and peaks[path] <= memory_bytes]
            assert len(on_it) <= max_sharing
            assert len(on_it) == 1 or sum(peaks[path] for path in known) <= memory_bytes
            assert len(on_it) == 1 or known == on_it, "a file without a peak that fits is alone"


def test_files_share_as_their_peaks_allow_and_unmeasured_ones_are_alone() -> None:
    peaks = {"small.py": 2 * GB, "large.py": 30 * GB, "huge.py": 79 * GB}
    sized = size_budgets(["small.py", "large.py", "huge.py", "new.py"], peaks, memory_bytes=80 * GB, max_sharing=16)
    assert sized.needs == {
        "small.py": Need(gpus=1, memory_gb=5.0, shared=True),
        "large.py": Need(gpus=1, memory_gb=33.0, shared=True),
        "huge.py": OWN_GPU,
        "new.py": OWN_GPU,
    }
    assert sized.num_sharing == (2, 16)
    assert (
        "2 to 16 files on each GPU of 80 GB, from the measured peaks of 2 files: budgets of 5 to 33 GB" in sized.note()
    )
    assert "a GPU of its own for 2 files without a measured peak" in sized.note()


def test_without_measurements_every_file_is_alone() -> None:
    sized = size_budgets(["a.py", "b.py"], {}, memory_bytes=80 * GB, max_sharing=16)
    assert set(sized.needs.values()) == {OWN_GPU}
    assert sized.num_sharing == (1, 1)
    assert "auto: 1 file on each GPU, because the history has no measured GPU memory" in sized.note()
