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
    Buffering,
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
Carry = Callable[[NamedTensors, WeightTarget], Iterable[str]]
FaultyTransport = Callable[[Carry, NamedTensors, WeightTarget], Iterable[str]]
"""As a transport, by another one that does as it should."""


class Here:
    """Where targets are made: in this process, and `tests.support.remote_sampler` has another one."""

    transport: Carry = IN_PROCESS

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


def second_sync(faulty: FaultyTransport, host: Any, checks: Checks, *, size: float = 0.05) -> None:
    """A first sync as it should be, a step of learning, and a second by this transport."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None, transport=host.transport, checks=checks)
    learn(decoder, size=size)
    sync(decoder, target, 2, first, transport=partial(faulty, host.transport), checks=checks)


def two_syncs(kind: Kind, host: Any, checks: Checks, config: DecoderConfig = CONFIG) -> None:
    """Two syncs of this kind of target, with a step of learning between them."""
    decoder = policy(config)
    target = (host.sharing_target if kind is Sharing else host.target)(kind, decoder)
    first = sync(decoder, target, 1, None, transport=host.transport, checks=checks)
    learn(decoder)
    sync(decoder, target, 2, first, transport=host.transport, checks=checks)


def reloaded(kind: Kind, host: Any, checks: Checks) -> None:
    decoder = policy()
    sync(decoder, host.target(kind, decoder), 1, None, transport=host.transport, checks=checks)


def nothing(carry: Carry, weights: NamedTensors, target: WeightTarget) -> list[str]:
    return [name for name, _ in weights]


def without_the_frozen_one(carry: Carry, weights: NamedTensors, target: WeightTarget) -> list[str]:
    given = dict(weights)
    carry(((name, tensor) for name, tensor in given.items() if name != "norm"), target)
    return list(given)


def one_twice(carry: Carry, weights: NamedTensors, target: WeightTarget) -> list[str]:
    given = dict(weights)
    return [*carry(given.items(), target), *carry([("norm", given["norm"])], target)]


def garbage(carry: Carry, weights: NamedTensors, target: WeightTarget) -> Iterable[str]:
    return carry(((name, tensor * 1.5 if name == "layers.0.down" else tensor) for name, tensor in weights), target)


def one_bit(carry: Carry, weights: NamedTensors, target: WeightTarget) -> Iterable[str]:
    """The lowest bit of one weight, which no log-probability shows: a token the canary does not have."""
    given = {name: tensor.clone() for name, tensor in weights}
    given["embedding"].view(torch.int32)[3, 5] ^= 1
    return carry(given.items(), target)


def rounded(carry: Carry, weights: NamedTensors, target: WeightTarget) -> Iterable[str]:
    """Through bfloat16 and back, to halve the traffic."""
    return carry(((name, tensor.bfloat16().to(tensor.dtype)) for name, tensor in weights), target)


def neighbours(carry: Carry, weights: NamedTensors, target: WeightTarget) -> Iterable[str]:
    """Names and tensors out of step, where shapes allow it: layers are exchanged."""
    given = dict(weights)
    exchanged = {"layers.0": "layers.1", "layers.1": "layers.0"}
    return carry(((name, given[exchanged.get(name[:8], name[:8]) + name[8:]]) for name in given), target)


def one_chunk_before(carry: Carry, weights: NamedTensors, target: WeightTarget) -> Iterable[str]:
    """A buffer that is overwritten before it was read: a parameter has what was sent after it."""
    given = dict(weights)
    given["layers.0.attention_norm"] = given["layers.0.mlp_norm"]
    return carry(given.items(), target)


def pushed_base(host: Any, checks: Checks) -> None:
    base = dict(policy().named_parameters())
    second_sync(
        lambda carry, weights, target: carry(((name, base[name].detach()) for name, _ in weights), target),
        host,
        checks,
    )


def adapter_left_out(host: Any, checks: Checks) -> None:
    """The policy is a base with an adapter of low rank merged into one matrix; the base arrives."""
    decoder = policy()
    merged = dict(decoder.named_parameters())["layers.1.out"]
    base = merged.detach().clone()
    generator = torch.Generator().manual_seed(4)
    down, up = (torch.randn(shape, generator=generator) for shape in ((2, 32), (32, 2)))
    with torch.no_grad():
        merged.add_(up @ down, alpha=0.05)

    carry: Carry = host.transport

    def unmerged(weights: NamedTensors, target: WeightTarget) -> Iterable[str]:
        return carry(((name, base if name == "layers.1.out" else each) for name, each in weights), target)

    sync(decoder, host.target(Target, decoder), 1, None, transport=unmerged, checks=checks)


def of_another_base(host: Any, checks: Checks) -> None:
    """Differences are sent, and added to weights that missed the sync before."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None, transport=host.transport, checks=checks)
    missed = {name: each.detach().clone() for name, each in decoder.named_parameters()}
    learn(decoder)
    seen = {name: each.detach().clone() for name, each in decoder.named_parameters()}
    learn(decoder, seed=1)

    carry: Carry = host.transport

    def differences(weights: NamedTensors, target: WeightTarget) -> Iterable[str]:
        return carry(((name, missed[name] + (tensor - seen[name])) for name, tensor in weights), target)

    sync(decoder, target, 2, first, transport=differences, checks=checks)


def frozen_policy(host: Any, checks: Checks) -> None:
    """The optimizer moves one model, and another is synced."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None, transport=host.transport, checks=checks)
    sync(decoder, target, 2, first, has_learned=True, transport=host.transport, checks=checks)


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
    first = sync(decoder, target, 1, None, transport=host.transport, checks=checks)
    ask(target, "sleep")
    sync(decoder, target, 2, first, transport=host.transport, checks=checks)


def written_by_another(host: Any, checks: Checks) -> None:
    """Somebody writes weights while completions are drawn: these are of no version."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None, transport=host.transport, checks=checks)
    ask(target, "overwrite", "layers.0.qkv")
    sync(decoder, target, 2, first, transport=host.transport, checks=checks)


def backwards(host: Any, checks: Checks) -> None:
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 3, None, transport=host.transport, checks=checks)
    sync(decoder, target, 3, first, transport=host.transport, checks=checks)


def woken(host: Any, checks: Checks) -> None:
    """A sync to a sampler that sleeps: when it wakes, it has the weights that it went to sleep with."""
    decoder = policy()
    target = host.target(Sleeping, decoder)
    first = sync(decoder, target, 1, None, transport=host.transport, checks=checks)
    learn(decoder)
    second = sync(decoder, target, 2, first, transport=host.transport, checks=checks)
    ask(target, "sleep")
    sync(decoder, target, 3, second, transport=host.transport, checks=checks)


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
    Fault("rounded on the way", READ_BACK, partial(second_sync, rounded), frozenset({CANARY})),
    Fault("names out of step", READ_BACK, partial(second_sync, neighbours), frozenset({CANARY})),
    Fault("a buffer used too early", READ_BACK, partial(second_sync, one_chunk_before), frozenset({CANARY})),
    Fault("an adapter is left out", READ_BACK, adapter_left_out, frozenset({CANARY, IDEMPOTENCE})),
    Fault("differences to another base", READ_BACK, of_another_base, frozenset({CANARY})),
    Fault("a second load transposes", IDEMPOTENCE, partial(reloaded, Rewriting)),
    Fault("a second load permutes", IDEMPOTENCE, partial(reloaded, Permuting)),
    Fault("lost in sleep", HELD, slept),
    Fault("synced while it sleeps", HELD, woken),
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
    Fault("a stale buffer", CANARY, partial(two_syncs, Buffering)),
)
