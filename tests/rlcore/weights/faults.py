"""Weight syncs that went wrong elsewhere, each by a way of writing or a target, and the check that finds it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.weights.proven_sync import sync
from rlcore.weights.receipts import Check
from rlcore.weights.target import NamedTensors
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

Kind = Callable[[Decoder], Target]
Write = Callable[[NamedTensors], None]
FaultyWrite = Callable[[Write, NamedTensors], None]
"""As `WeightTarget.write`, by one that does as it should."""


class Here:
    """Where targets are made: in this process, and `tests.support.remote_sampler` has another one."""

    def target(self, kind: Kind, decoder: Decoder) -> Any:
        """Make a target of a decoder's weights."""
        return kind(decoder)

    def sharing_target(self, kind: Kind, decoder: Decoder) -> Any:
        """Make a target in the decoder's own memory."""
        return kind(decoder)


class Written:
    """A target that is written in a faulty way, here or in another process."""

    def __init__(self, target: Any, write: FaultyWrite) -> None:
        self._target, self._write = target, write

    def write(self, weights: NamedTensors) -> None:
        self._write(self._target.write, weights)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


@dataclass(frozen=True)
class Fault:
    """One way to be wrong."""

    name: str
    check: Check
    """The check that finds it."""
    inject: Callable[[Any], None]
    """Syncs to a target of this host until the check finds it."""


def second_sync(faulty: FaultyWrite, host: Any, *, size: float = 0.05) -> None:
    """A first sync as it should be, a step of learning, and a second that is written in this way."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None)
    learn(decoder, size=size)
    sync(decoder, Written(target, faulty), 2, first)


def two_syncs(kind: Kind, host: Any, config: DecoderConfig = CONFIG) -> None:
    """Two syncs of this kind of target, with a step of learning between them."""
    decoder = policy(config)
    target = (host.sharing_target if kind is Sharing else host.target)(kind, decoder)
    first = sync(decoder, target, 1, None)
    learn(decoder)
    sync(decoder, target, 2, first)


def first_sync(kind: Kind, host: Any) -> None:
    decoder = policy()
    sync(decoder, host.target(kind, decoder), 1, None)


def nothing(write: Write, weights: NamedTensors) -> None:
    for _ in weights:
        pass


def without_one(write: Write, weights: NamedTensors) -> None:
    write((name, tensor) for name, tensor in weights if name != "layers.0.mlp_norm")


def garbage(write: Write, weights: NamedTensors) -> None:
    write((name, tensor * 1.5 if name == "layers.0.down" else tensor) for name, tensor in weights)


def one_bit(write: Write, weights: NamedTensors) -> None:
    """The lowest bit of one weight, which no log-probability shows: a token the canary does not have."""
    given = {name: tensor.clone() for name, tensor in weights}
    given["embedding"].view(torch.int32)[3, 5] ^= 1
    write(given.items())


def rounded(write: Write, weights: NamedTensors) -> None:
    """Through bfloat16 and back, to halve the traffic."""
    write((name, tensor.bfloat16().to(tensor.dtype)) for name, tensor in weights)


def neighbours(write: Write, weights: NamedTensors) -> None:
    """Names and tensors out of step, where shapes allow it: layers are exchanged."""
    given = dict(weights)
    exchanged = {"layers.0": "layers.1", "layers.1": "layers.0"}
    write((name, given[exchanged.get(name[:8], name[:8]) + name[8:]]) for name in given)


def one_chunk_before(write: Write, weights: NamedTensors) -> None:
    """A buffer that is overwritten before it was read: a parameter has what was sent after it."""
    given = dict(weights)
    given["layers.0.attention_norm"] = given["layers.0.mlp_norm"]
    write(given.items())


def pushed_base(host: Any) -> None:
    base = dict(policy().named_parameters())
    second_sync(lambda write, weights: write((name, base[name].detach()) for name, _ in weights), host)


def adapter_left_out(host: Any) -> None:
    """The policy is a base with an adapter of low rank merged into one matrix; the base arrives."""
    decoder = policy()
    merged = dict(decoder.named_parameters())["layers.1.out"]
    base = merged.detach().clone()
    generator = torch.Generator().manual_seed(4)
    down, up = (torch.randn(shape, generator=generator) for shape in ((2, 32), (32, 2)))
    with torch.no_grad():
        merged.add_(up @ down, alpha=0.05)

    def unmerged(write: Write, weights: NamedTensors) -> None:
        write((name, base if name == "layers.1.out" else each) for name, each in weights)

    sync(decoder, Written(host.target(Target, decoder), unmerged), 1, None)


def of_another_base(host: Any) -> None:
    """Differences are sent, and added to weights that missed the sync before."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None)
    missed = {name: each.detach().clone() for name, each in decoder.named_parameters()}
    learn(decoder)
    seen = {name: each.detach().clone() for name, each in decoder.named_parameters()}
    learn(decoder, seed=1)

    def differences(write: Write, weights: NamedTensors) -> None:
        write((name, missed[name] + (tensor - seen[name])) for name, tensor in weights)

    sync(decoder, Written(target, differences), 2, first)


def frozen_policy(host: Any) -> None:
    """The optimizer moves one model, and another is synced."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None)
    sync(decoder, target, 2, first, has_learned=True)


def ask(target: Any, method: str, *given: Any) -> None:
    """Call a method that no weight target has, here or in the other process."""
    if isinstance(target, Target):
        getattr(target, method)(*given)
    else:
        target.ask(method, *given)


def slept(host: Any) -> None:
    decoder = policy()
    target = host.target(Sleeping, decoder)
    learn(decoder)
    first = sync(decoder, target, 1, None)
    ask(target, "sleep")
    sync(decoder, target, 2, first)


def written_by_another(host: Any) -> None:
    """Somebody writes weights while completions are drawn: these are of no version."""
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 1, None)
    ask(target, "overwrite", "layers.0.qkv")
    sync(decoder, target, 2, first)


def backwards(host: Any) -> None:
    decoder = policy()
    target = host.target(Target, decoder)
    first = sync(decoder, target, 3, None)
    sync(decoder, target, 3, first)


def woken(host: Any) -> None:
    """A sync to a sampler that sleeps: when it wakes, it has the weights that it went to sleep with."""
    decoder = policy()
    target = host.target(Sleeping, decoder)
    first = sync(decoder, target, 1, None)
    learn(decoder)
    second = sync(decoder, target, 2, first)
    ask(target, "sleep")
    sync(decoder, target, 3, second)


UNSALTED = partial(PrefixCaching, is_salted=False)

FAULTS = (
    Fault("nothing is copied", Check.LIVENESS, partial(second_sync, nothing)),
    Fault("written into copies", Check.LIVENESS, partial(two_syncs, Copying)),
    Fault("one is skipped", Check.LIVENESS, partial(second_sync, without_one)),
    Fault("a part of one is skipped", Check.READ_BACK, partial(two_syncs, QueriesOnly)),
    Fault("a head is missing", Check.COVERAGE, partial(two_syncs, Forgetful, config=UNTIED)),
    Fault("the base is pushed", Check.LIVENESS, pushed_base),
    Fault("a frozen policy is synced", Check.LIVENESS, frozen_policy),
    Fault("garbage from the second sync", Check.READ_BACK, partial(second_sync, garbage)),
    Fault("one bit of one weight", Check.READ_BACK, partial(second_sync, one_bit)),
    Fault("rounded on the way", Check.READ_BACK, partial(second_sync, rounded)),
    Fault("names out of step", Check.READ_BACK, partial(second_sync, neighbours)),
    Fault("a buffer used too early", Check.READ_BACK, partial(second_sync, one_chunk_before)),
    Fault("an adapter is left out", Check.READ_BACK, adapter_left_out),
    Fault("differences to another base", Check.READ_BACK, of_another_base),
    Fault("a second load transposes", Check.READ_BACK, partial(first_sync, Rewriting)),
    Fault("a second load permutes", Check.READ_BACK, partial(first_sync, Permuting)),
    Fault("lost in sleep", Check.HELD, slept),
    Fault("synced while it sleeps", Check.HELD, woken),
    Fault("written while it samples", Check.HELD, written_by_another),
    Fault("a version twice", Check.FENCE, backwards),
    Fault("no copy of its own", Check.OWNERSHIP, partial(two_syncs, Sharing)),
    Fault("a head that is not tied", Check.READ_BACK, partial(two_syncs, WronglyTied, config=UNTIED)),
    Fault("a stale prefix", Check.CANARY, partial(two_syncs, UNSALTED)),
    Fault("a stale conversion", Check.CANARY, partial(two_syncs, Converting)),
    Fault("a stale buffer", Check.CANARY, partial(two_syncs, Buffering)),
)
