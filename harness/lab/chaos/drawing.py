"""Which perturbation is the i-th of a seed: always the same one, whatever was drawn before it. Pure.

Each factor has numbers of its own, so that one more factor, or one less, changes nothing about the others.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from harness.lab.experiments.perturbation_factors import Factor

QUARTERS = 4


def drawn(factors: Sequence[Factor], seed: int, index: int) -> dict[str, Any]:
    """The `index`-th perturbation of a seed: at least one factor, in the order of `factors`.

    A factor that has no effect with the values drawn for the others is left out.
    """
    changed = [each for each in factors if number(seed, index, each.name, "whether") % QUARTERS < each.num_quarters]
    values = _values(changed, seed, index)
    changed = [each for each in changed if each.is_effective(values)]
    if not changed:
        unconditional = [each for each in factors if each.is_effective({})]
        changed = [unconditional[number(seed, index, "which") % len(unconditional)]]
    return _values(changed, seed, index)


def _values(factors: Sequence[Factor], seed: int, index: int) -> dict[str, Any]:
    return {each.name: each.values.drawn(number(seed, index, each.name, "value"), each.usual) for each in factors}


def number(*parts: int | str) -> int:
    """A large number that follows from these parts alone."""
    return int.from_bytes(blake2b("\0".join(map(str, parts)).encode(), digest_size=16).digest(), "big")
