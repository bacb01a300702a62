"""Which perturbation is the i-th of a seed: always the same one, whatever was drawn before it. Pure.

Each factor has numbers of its own, so that one more factor, or one less, changes nothing about the others.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from harness.lab.experiments.perturbation_factors import Factor

QUARTERS = 4


def drawn(factors: Sequence[Factor], seed: int, index: int) -> dict[str, Any]:
    """The `index`-th perturbation of a seed: at least one factor, in the order of `factors`."""
    changed = [each for each in factors if number(seed, index, each.name, "whether") % QUARTERS < each.num_quarters]
    changed = changed or [factors[number(seed, index, "which") % len(factors)]]
    return {each.name: each.values.drawn(number(seed, index, each.name, "value"), each.usual) for each in changed}


def number(*parts: int | str) -> int:
    """A large number that follows from these parts alone."""
    return int.from_bytes(blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest(), "big")
