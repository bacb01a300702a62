"""What is checked when weights go to a sampler, and the receipt that says that it was."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Check(StrEnum):
    """One of the checks of a sync."""

    FENCE = "fence"
    """Versions rise, and nothing is sampled between the begin and the commit of a sync."""
    OWNERSHIP = "ownership"
    """The sampler's weights are in memory of their own: not the policy's, and no two parameters at one address."""
    HELD = "held"
    """Until now the sampler holds what the last receipt says, to the bit."""
    COVERAGE = "coverage"
    """Each parameter is written exactly once and to its last element; none is missing, none left over."""
    READ_BACK = "read-back"
    """Each parameter of the sampler has the digest of the policy's."""
    LIVENESS = "liveness"
    """What has changed in the policy since the last receipt has changed in the sampler."""
    IDEMPOTENCE = "idempotence"
    """Written twice, the weights have the bits they have when written once."""
    CANARY = "canary"
    """The sampler gives a fixed sequence the policy's log-probabilities: it computes with what it holds."""


ALL_CHECKS = frozenset(Check)


@dataclass(frozen=True, slots=True)
class Receipt:
    """One sync that has passed its checks. Plain values: `dataclasses.asdict` of it can be written as JSON."""

    policy_version: int
    weights_digest: str
    """Of all the policy's parameters: what each completion drawn with them carries."""
    parameters: Mapping[str, str]
    """The digest of each, by the policy's names."""
    tied: tuple[tuple[str, ...], ...]
    """Names that are one parameter, such as a head that is the embedding; each group is written as one."""
    num_changed: int | None
    """Parameters that are not those of the receipt before; None for the first."""
    canary: tuple[float, ...]
    """Log-probabilities the sampler gave the canary; empty where that was not checked."""
    canary_distance: float
    """The largest distance to those of the policy, in nats; 0 at level invariant."""
    checks: tuple[str, ...]
    """Those that were made, in alphabetical order."""
    num_bytes: int
    """Weights that were written."""
    duration_s: float
