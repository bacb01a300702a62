"""The checks of a weight sync, and the receipt that says that they passed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Check(StrEnum):
    """One of the checks of a sync."""

    FENCE = "fence"
    """Versions rise, and nothing is sampled between the begin and the commit of a sync."""
    COVERAGE = "coverage"
    """Each parameter of the policy is in the sampler, with its type and shape, and none besides."""
    OWNERSHIP = "ownership"
    """The sampler's weights are in memory of their own, not the policy's."""
    HELD = "held"
    """Until now the sampler holds what the last receipt says, to the bit."""
    LIVENESS = "liveness"
    """What has changed in the policy since the last receipt has changed in the sampler."""
    READ_BACK = "read-back"
    """Each parameter of the sampler has the digest of the policy's."""
    CANARY = "canary"
    """The sampler gives a fixed sequence the policy's log-probabilities: it computes with what it holds."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One sync that has passed its checks. Plain values: `dataclasses.asdict` of it can be written as JSON."""

    policy_version: int
    weights_digest: str
    """Of all the policy's parameters: what each completion drawn with them carries."""
    parameters: Mapping[str, str]
    """The digest of each, by the policy's names."""
    tied: tuple[tuple[str, ...], ...]
    """Names that are one parameter, such as a head that is the embedding."""
    num_changed: int | None
    """Parameters that are not those of the receipt before; None for the first."""
    canary: tuple[float, ...]
    """Log-probabilities the sampler gave the canary; empty where that was not checked."""
    canary_distance: float
    """The largest distance to those of the policy, in nats; 0 at level invariant."""
    duration_s: float


def changed_names(digests: Mapping[str, str], receipt: Receipt) -> list[str]:
    """Return the parameters whose digest is not that of the receipt."""
    return [name for name, digest in digests.items() if digest != receipt.parameters.get(name)]
