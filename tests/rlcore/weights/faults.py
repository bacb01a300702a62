"""Weight syncs that went wrong elsewhere, each injected by a transport or a sampler, and the check that finds it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlcore.models.decoder import Decoder
from rlcore.weights.receipts import ALL_CHECKS, Check
from rlcore.weights.sync import copy_into, sync
from tests.rlcore.weights.holders import (
    UNTIED,
    Converting,
    Copying,
    Forgetful,
    Holder,
    PrefixCaching,
    Sharing,
    Sleeping,
    WronglyTied,
    learn,
    policy,
)

Checks = frozenset[Check]
Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Fault:
    """One way to be wrong."""

    name: str
    check: Check
    """Finds it first."""
    inject: Callable[[Checks], None]
    """Syncs until it is found by one of these checks, or is over."""
    others: Checks = field(default_factory=frozenset)
    """Would find it where the first is switched off."""


def second_sync(transport: Callable[[Named, Named], Iterable[str]], checks: Checks, *, size: float = 0.05) -> None:
    """A first sync as it should be, a step of learning, and a second by this transport."""
    decoder = policy()
    holder = Holder(decoder)
    first = sync(decoder, holder, 1, None, checks=checks)
    learn(decoder, size=size)
    sync(decoder, holder, 2, first, transport=transport, checks=checks)


def syncs_of(holder: Holder, decoder: Decoder, checks: Checks) -> None:
    """Two syncs of this sampler, with a step of learning between them."""
    first = sync(decoder, holder, 1, None, checks=checks)
    learn(decoder)
    sync(decoder, holder, 2, first, checks=checks)


def nothing(source: Named, targets: Named) -> list[str]:
    return list(targets)


def without_the_frozen_one(source: Named, targets: Named) -> list[str]:
    copy_into(source, {name: target for name, target in targets.items() if name != "norm"})
    return list(targets)


def without_keys_and_values(source: Named, targets: Named) -> list[str]:
    """As one that knows of queries only, and skips what it does not know."""
    for name, target in targets.items():
        rows = len(target) // 2 if name == "layers.1.qkv" else len(target)
        target[:rows].copy_(source[name][:rows])
    return list(targets)


def one_twice(source: Named, targets: Named) -> list[str]:
    return [*copy_into(source, targets), "norm"]


def the_base(base: Decoder) -> Callable[[Named, Named], Iterable[str]]:
    frozen = {name: parameter.detach().clone() for name, parameter in base.named_parameters()}
    return lambda source, targets: copy_into(frozen, targets)


def garbage(source: Named, targets: Named) -> list[str]:
    written = copy_into(source, targets)
    targets["layers.0.down"].mul_(1.5)
    return written


def one_bit(source: Named, targets: Named) -> list[str]:
    """The lowest bit of one weight, which no log-probability shows: a token the canary does not have."""
    written = copy_into(source, targets)
    targets["embedding"].view(torch.int32)[3, 5] ^= 1
    return written


class Reloading:
    """Does again with each load what only the first should do."""

    def __init__(self, spoil: Callable[[Tensor], Tensor]) -> None:
        self.spoil, self.num_loads = spoil, 0

    def __call__(self, source: Named, targets: Named) -> list[str]:
        written = copy_into(source, targets)
        self.num_loads += 1
        if self.num_loads > 1:
            targets["layers.0.out"].copy_(self.spoil(source["layers.0.out"]))
        return written


def reloaded(spoil: Callable[[Tensor], Tensor], checks: Checks) -> None:
    decoder = policy()
    sync(decoder, Holder(decoder), 1, None, transport=Reloading(spoil), checks=checks)


def frozen_policy(checks: Checks) -> None:
    """The optimizer moves one model, and another is synced."""
    decoder = policy()
    holder = Holder(decoder)
    first = sync(decoder, holder, 1, None, checks=checks)
    sync(decoder, holder, 2, first, has_learned=True, checks=checks)


def pushed_base(checks: Checks) -> None:
    second_sync(the_base(policy()), checks)


def slept(checks: Checks) -> None:
    decoder = policy()
    holder = Sleeping(decoder)
    learn(decoder)
    first = sync(decoder, holder, 1, None, checks=checks)
    holder.sleep()
    sync(decoder, holder, 2, first, checks=checks)


def written_by_another(checks: Checks) -> None:
    """Somebody writes weights while completions are drawn: these are of no version."""
    decoder = policy()
    holder = Holder(decoder)
    first = sync(decoder, holder, 1, None, checks=checks)
    holder.parameters()["layers.0.qkv"][0, 0] += 1.0
    sync(decoder, holder, 2, first, checks=checks)


def backwards(checks: Checks) -> None:
    decoder = policy()
    holder = Holder(decoder)
    first = sync(decoder, holder, 3, None, checks=checks)
    sync(decoder, holder, 3, first, checks=checks)


def untied(kind: type[Holder], checks: Checks) -> None:
    decoder = policy(UNTIED)
    syncs_of(kind(decoder), decoder, checks)


def of(kind: Callable[[Decoder], Holder], checks: Checks) -> None:
    decoder = policy()
    syncs_of(kind(decoder), decoder, checks)


COVERAGE, READ_BACK, LIVENESS, CANARY = Check.COVERAGE, Check.READ_BACK, Check.LIVENESS, Check.CANARY
OWNERSHIP, HELD, IDEMPOTENCE, FENCE = Check.OWNERSHIP, Check.HELD, Check.IDEMPOTENCE, Check.FENCE
THE_REST = ALL_CHECKS - {OWNERSHIP}

FAULTS = (
    Fault("nothing is copied", COVERAGE, lambda c: second_sync(nothing, c), frozenset({LIVENESS, READ_BACK, CANARY})),
    Fault("written into copies", COVERAGE, lambda c: of(Copying, c), frozenset({LIVENESS, READ_BACK, CANARY})),
    Fault("a frozen one is skipped", COVERAGE, lambda c: second_sync(without_the_frozen_one, c)),
    Fault(
        "a part of one is skipped",
        COVERAGE,
        lambda c: second_sync(without_keys_and_values, c),
        frozenset({READ_BACK, CANARY}),
    ),
    Fault("one is written twice", COVERAGE, lambda c: second_sync(one_twice, c)),
    Fault("a head is missing", COVERAGE, lambda c: untied(Forgetful, c), frozenset({CANARY})),
    Fault("the base is pushed", LIVENESS, pushed_base, frozenset({READ_BACK, CANARY})),
    Fault("a frozen policy is synced", LIVENESS, frozen_policy),
    Fault("garbage from the second sync", READ_BACK, lambda c: second_sync(garbage, c), frozenset({CANARY})),
    Fault("one bit of one weight", READ_BACK, lambda c: second_sync(one_bit, c)),
    Fault("a second load transposes", IDEMPOTENCE, lambda c: reloaded(torch.t, c)),
    Fault("a second load permutes", IDEMPOTENCE, lambda c: reloaded(torch.flipud, c)),
    Fault("lost in sleep", HELD, slept),
    Fault("written while it samples", HELD, written_by_another),
    Fault("a version twice", FENCE, backwards),
    Fault("no copy of its own", OWNERSHIP, lambda c: of(Sharing, c), frozenset({HELD, COVERAGE, READ_BACK, CANARY})),
    Fault(
        "a head that is not tied",
        OWNERSHIP,
        lambda c: untied(WronglyTied, c),
        THE_REST,
    ),
    Fault("a stale prefix", CANARY, lambda c: of(lambda d: PrefixCaching(d, is_salted=False), c)),
    Fault("a stale conversion", CANARY, lambda c: of(Converting, c)),
)
