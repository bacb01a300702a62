"""Weight syncs that went wrong elsewhere, each injected by a transport or a target, and the check that finds it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.weights.receipts import ALL_CHECKS, Check
from rlcore.weights.sync import IN_PROCESS, sync
from rlcore.weights.target import WeightTarget
from rlcore.weights.transports.base import NamedTensors
from tests.rlcore.weights.targets import (
    CONFIG,
    UNTIED,
    Converting,
    Copying,
    Forgetful,
    Permuting,
    PrefixCaching,
    QueriesOnly,
    Rewriting,
    Sharing,
    Sleeping,
    Target,
    WronglyTied,
    learn,
    policy,
)

Checks = frozenset[Check]
Kind = Callable[[Decoder], Target]
Transport = Callable[[NamedTensors, WeightTarget], Iterable[str]]


class Here:
    """Where targets are made: in this process, and `tests.support.remote_sampler` has another one."""

    def target(self, kind: Kind, decoder: Decoder) -> Any:
        """Make a target of a decoder's weights."""
        return kind(decoder)

    def sharing_target(self, kind: Kind, decoder: Decoder) -> Any:
        """Make a target in the decoder's own memory."""
        return kind(decoder)


@dataclass(frozen=True)
class Fault:
    """One way to be wrong."""

    name: str
    check: Check
    """The check that finds it first."""
    inject: Callable[[Any, Checks], None]
    """Syncs to a target of this host until one of these checks finds it, or until all is done."""
    others: Checks = field(default_factory=frozenset)
    """Checks that find it if the first is switched off."""


def second_sync(transport: Transport, host: Any, checks: Checks, *, size: float = 0.05) -> None:
    """A first sync as it should be, a step of learning, and a second by this transport."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None, checks=checks)
    learn(decoder, size=size)
    sync(decoder, target, 2, first, transport=transport, checks=checks)


def two_syncs(kind: Kind, host: Any, checks: Checks, config: DecoderConfig = CONFIG) -> None:
    """Two syncs of this kind of target, with a step of learning between them."""
    decoder = policy(config)
    target = (host.sharing_target if kind is Sharing else host.target)(kind, decoder)
    first = sync(decoder, target, 1, None, checks=checks)
    learn(decoder)
    sync(decoder, target, 2, first, checks=checks)


def reloaded(kind: Kind, host: Any, checks: Checks) -> None:
    decoder = policy()
    sync(decoder, host.target(kind, decoder), 1, None, checks=checks)


def nothing(weights: NamedTensors, target: WeightTarget) -> list[str]:
    return [name for name, _ in weights]


def without_the_frozen_one(weights: NamedTensors, target: WeightTarget) -> list[str]:
    given = dict(weights)
    IN_PROCESS(((name, tensor) for name, tensor in given.items() if name != "norm"), target)
    return list(given)


def one_twice(weights: NamedTensors, target: WeightTarget) -> list[str]:
    given = dict(weights)
    return [*IN_PROCESS(given.items(), target), *target.write({"norm": given["norm"]})]


def garbage(weights: NamedTensors, target: WeightTarget) -> list[str]:
    return IN_PROCESS(((name, tensor * 1.5 if name == "layers.0.down" else tensor) for name, tensor in weights), target)


def one_bit(weights: NamedTensors, target: WeightTarget) -> list[str]:
    """The lowest bit of one weight, which no log-probability shows: a token the canary does not have."""
    given = {name: tensor.clone() for name, tensor in weights}
    given["embedding"].view(torch.int32)[3, 5] ^= 1
    return IN_PROCESS(given.items(), target)


def pushed_base(host: Any, checks: Checks) -> None:
    base = dict(policy().named_parameters())
    second_sync(
        lambda weights, target: IN_PROCESS(((name, base[name].detach()) for name, _ in weights), target), host, checks
    )


def frozen_policy(host: Any, checks: Checks) -> None:
    """The optimizer moves one model, and another is synced."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None, checks=checks)
    sync(decoder, target, 2, first, has_learned=True, checks=checks)


def ask(target: Any, method: str, *given: Any) -> None:
    """Call a method that no weight target has, here or in the other process."""
    if isinstance(target, Target):
        getattr(target, method)(*given)
    else:
        target.ask(method, *given)


def slept(host: Any, checks: Checks) -> None:
    decoder = policy()
    target = host.target(Sleeping, decoder)
    learn(decoder)
    first = sync(decoder, target, 1, None, checks=checks)
    ask(target, "sleep")
    sync(decoder, target, 2, first, checks=checks)


def written_by_another(host: Any, checks: Checks) -> None:
    """Somebody writes weights while completions are drawn: these are of no version."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None, checks=checks)
    ask(target, "overwrite", "layers.0.qkv")
    sync(decoder, target, 2, first, checks=checks)


def backwards(host: Any, checks: Checks) -> None:
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 3, None, checks=checks)
    sync(decoder, target, 3, first, checks=checks)


COVERAGE, READ_BACK, LIVENESS, CANARY = Check.COVERAGE, Check.READ_BACK, Check.LIVENESS, Check.CANARY
OWNERSHIP, HELD, IDEMPOTENCE, FENCE = Check.OWNERSHIP, Check.HELD, Check.IDEMPOTENCE, Check.FENCE
THE_REST = ALL_CHECKS - {OWNERSHIP}
UNSALTED = partial(PrefixCaching, is_salted=False)

FAULTS = (
    Fault("nothing is copied", COVERAGE, partial(second_sync, nothing), frozenset({LIVENESS, READ_BACK, CANARY})),
    Fault("written into copies", COVERAGE, partial(two_syncs, Copying), frozenset({LIVENESS, READ_BACK, CANARY})),
    Fault("a frozen one is skipped", COVERAGE, partial(second_sync, without_the_frozen_one)),
    Fault("a part of one is skipped", COVERAGE, partial(two_syncs, QueriesOnly), frozenset({READ_BACK, CANARY})),
    Fault("one is written twice", COVERAGE, partial(second_sync, one_twice)),
    Fault("a head is missing", COVERAGE, partial(two_syncs, Forgetful, config=UNTIED), frozenset({CANARY})),
    Fault("the base is pushed", LIVENESS, pushed_base, frozenset({READ_BACK, CANARY})),
    Fault("a frozen policy is synced", LIVENESS, frozen_policy),
    Fault("garbage from the second sync", READ_BACK, partial(second_sync, garbage), frozenset({CANARY})),
    Fault("one bit of one weight", READ_BACK, partial(second_sync, one_bit)),
    Fault("a second load transposes", IDEMPOTENCE, partial(reloaded, Rewriting)),
    Fault("a second load permutes", IDEMPOTENCE, partial(reloaded, Permuting)),
    Fault("lost in sleep", HELD, slept),
    Fault("written while it samples", HELD, written_by_another),
    Fault("a version twice", FENCE, backwards),
    Fault(
        "no copy of its own",
        OWNERSHIP,
        partial(two_syncs, Sharing),
        frozenset({HELD, COVERAGE, READ_BACK, CANARY}),
    ),
    Fault("a head that is not tied", OWNERSHIP, partial(two_syncs, WronglyTied, config=UNTIED), THE_REST),
    Fault("a stale prefix", CANARY, partial(two_syncs, UNSALTED)),
    Fault("a stale conversion", CANARY, partial(two_syncs, Converting)),
)
