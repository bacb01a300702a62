"""What one trace shows without another: batches that came before, rewards that stay 0. Pure."""

import math
from collections.abc import Iterator
from itertools import islice

from harness.bits.digests import digest
from harness.bits.findings import Finding, FindingCode
from harness.trace.chain import RecordedValue, Scope
from harness.trace.reader import Trace
from harness.trace.values import ELEMENT_BYTES

MAX_STEPS = 2000
"""So many steps are read: about a second."""
LEAST_ZEROS = 3
"""Number of steps without a reward that are no accident."""


class RepeatCode(FindingCode):
    """What a run does again and again."""

    BATCHES_REPEAT = (
        "batches_repeat",
        "{num} of the {num_batches} batches came before: step {step} has that of step {earlier}",
    )
    REWARDS_ZERO = "rewards_zero", "all rewards are 0 since step {step}"


def repeats(trace: Trace) -> Iterator[Finding]:
    """Yield what the first rank shows; nothing of a program that has a single batch."""
    log = trace.ranks[min(trace.ranks)]
    first_seen: dict[tuple[bytes, ...], int] = {}
    repeated: list[tuple[int, int]] = []
    num_batches, zero_since, num_zero = 0, 0, 0
    for step in islice(log.heads, MAX_STEPS):
        values = [value for _, value in log.columns(step).of_phases(("rollout", "reward"))]
        if batch := tuple([each.digest for each in values if _is_batch(each)]):
            num_batches += 1
            if (earlier := first_seen.setdefault(batch, step)) != step:
                repeated.append((step, earlier))
        if rewards := [each for each in values if each.phase == "reward"]:
            is_zero = all(_is_zero(each) for each in rewards)
            zero_since, num_zero = (zero_since if num_zero else step, num_zero + 1) if is_zero else (0, 0)
    if repeated and len(first_seen) > 1:
        step, earlier = repeated[0]
        yield RepeatCode.BATCHES_REPEAT(num=len(repeated), num_batches=num_batches, step=step, earlier=earlier)
    if num_zero >= LEAST_ZEROS:
        yield RepeatCode.REWARDS_ZERO(step=zero_since)


def _is_batch(value: RecordedValue) -> bool:
    return value.phase == "rollout" and value.scope is Scope.PHYSICAL and f"{value.name}.".startswith("batch.")


def _is_zero(value: RecordedValue) -> bool:
    num_bytes = math.prod(value.shape) * ELEMENT_BYTES.get(value.dtype, 0)
    return num_bytes > 0 and (value.algorithm, value.digest) == digest(bytes(num_bytes))
