"""Lower bounds for units of which some share a GPU: memory x seconds, counted in GPUs x seconds.

On every GPU, at every moment, there is either one unit that has the GPU to itself or units whose budgets sum to no
more than its memory. Let x be a budget over the memory of the largest GPU, and f a dual feasible function: sum f(x)
<= 1 wherever sum x <= 1. Then sum of p q over the units with q whole GPUs, and of p f(x) over those that share, is no
more than the makespan times the number of GPUs. The functions here are the identity and Fekete and Schepers' u(k),
which count a budget of more than half of a GPU as all of it.
"""

from collections.abc import Sequence
from fractions import Fraction

from harness.runner.schedule.first_fit import Job

MAX_STEPS = 12
"""Greatest k of the functions u(k)."""


def memory_bound(jobs: Sequence[Job], gpu_bytes: int, num_gpus: int) -> float:
    """Return the greatest of the bounds by memory, in seconds, on `num_gpus` of at most `gpu_bytes` of memory each."""
    whole_s = sum(job.need.gpus * job.expected_s for job in jobs if not job.need.shared)
    shared_s: dict[Fraction, float] = {}
    for job in jobs:
        if job.need.shared:
            x = Fraction(min(job.need.budget_bytes, gpu_bytes), gpu_bytes)
            shared_s[x] = shared_s.get(x, 0.0) + job.expected_s
    most_s = max(sum(float(_rounded(x, k)) * seconds for x, seconds in shared_s.items()) for k in range(MAX_STEPS + 1))
    return (whole_s + most_s) / num_gpus


def fills_a_gpu(job: Job, gpu_bytes: int) -> bool:
    """Whether no two units like `job` fit on one GPU, so that it excludes them as a unit of one whole GPU does."""
    return not job.need.shared or 2 * job.need.budget_bytes > gpu_bytes


def _rounded(x: Fraction, k: int) -> Fraction:
    """u(k) of x; x itself for k = 0."""
    steps = (k + 1) * x
    return x if k == 0 or steps.denominator == 1 else Fraction(steps.numerator // steps.denominator, k)
