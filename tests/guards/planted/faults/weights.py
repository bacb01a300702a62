"""Faults of a weight sync, and of the reference policy: which weights a sampler, or a penalty, really has."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.data.trajectory import Trajectory
from rlcore.weights.digests import tensor_digests
from rlcore.weights.sync import IN_PROCESS
from tests.guards.planted.fault import Probe, fault, honest, replaced

SYNC = "rlcore.controllers.synchronous:sync"
SAMPLER = "rlcore.samplers.torch_sampler:TorchSampler"
PHASES = ("sync",)
REFERENCE = ("reference",)
Source = Mapping[str, Tensor]


def _carried(probe: Probe, transport: Any) -> Iterator[None]:
    """Another transport in the place of ours: (number of the call, weights by name, target) -> names."""
    sync = honest(SYNC)
    number = [0]

    def carry(weights: Iterable[tuple[str, Tensor]], target: Any) -> Iterable[str]:
        number[0] += 1
        source = dict(weights)
        told: Iterable[str] = transport(number[0], source, target)
        probe.reached(has_effect=target.digests(list(source)) != tensor_digests(source))
        return told

    def synced(*given: Any, **others: Any) -> Any:
        return sync(*given, transport=carry, **others)

    with replaced(SYNC, synced):
        yield


def _live(target: Any) -> dict[str, Tensor]:
    """The parameters that a target writes: faults of its own are put there."""
    found: dict[str, Tensor] = target._parameters()
    return found


def _copied(source: Source, target: Any) -> list[str]:
    """What an honest transport does."""
    return IN_PROCESS(source.items(), target)


@fault("torchtitan #2402", "parameters are on meta: the copy does nothing", phases=PHASES)
def sync_noop(probe: Probe) -> Iterator[None]:
    yield from _carried(probe, lambda number, source, target: list(source))


@fault("torchtitan #2402", "from the second sync on parameters are on meta: the copy does nothing", phases=PHASES)
def later_sync_noop(probe: Probe) -> Iterator[None]:
    sync = honest(SYNC)

    def carry_nothing(weights: Iterable[tuple[str, Tensor]], target: Any) -> list[str]:
        source = dict(weights)
        probe.reached(has_effect=target.digests(list(source)) != tensor_digests(source))
        return list(source)

    def synced(policy: Any, target: Any, version: int, previous: Any, **others: Any) -> Any:
        transport = IN_PROCESS if previous is None else carry_nothing
        return sync(policy, target, version, previous, transport=transport, **others)

    with replaced(SYNC, synced):
        yield


@fault(
    "torchtitan #2410",
    "the head is not among the weights that are sent",
    phases=PHASES,
    setting="untied",
    leaves=("head",),
)
def head_missing(probe: Probe) -> Iterator[None]:
    def but_the_head(number: int, source: Source, target: Any) -> list[str]:
        _copied({name: value for name, value in source.items() if name != "head"}, target)
        return list(source)

    yield from _carried(probe, but_the_head)


@fault(
    "torchtitan: strict=False", "a parameter of another name is left out silently", phases=PHASES, leaves=("mlp_norm",)
)
def name_not_found(probe: Probe) -> Iterator[None]:
    def by_name(number: int, source: Source, target: Any) -> list[str]:
        return _copied({name: value for name, value in source.items() if "mlp_norm" not in name}, target)

    yield from _carried(probe, by_name)


@fault("a converter of fused weights", "the rows of q, k and v are sent as k, q, v", phases=PHASES, leaves=("qkv",))
def fused_in_another_order(probe: Probe) -> Iterator[None]:
    def reordered(number: int, source: Source, target: Any) -> list[str]:
        changed = dict(source)
        for name, value in source.items():
            if name.endswith(".qkv"):
                q, k, v = torch.split(value, [value.shape[0] // 2, *[value.shape[0] // 4] * 2])
                changed[name] = torch.cat((k, q, v))
        return _copied(changed, target)

    yield from _carried(probe, reordered)


@fault("prime-rl #3175", "a load stops in the middle of a parameter", phases=PHASES, leaves=("embedding",))
def partial_load(probe: Probe) -> Iterator[None]:
    def half(number: int, source: Source, target: Any) -> list[str]:
        for name, value in source.items():
            end = len(value) // 2 if name == "embedding" else len(value)
            _live(target)[name][:end].copy_(value[:end])
        return list(source)

    yield from _carried(probe, half)


@fault("SkyRL #1680", "a second load transposes what the first has laid out", phases=PHASES, leaves=("out",))
def second_load_corrupts(probe: Probe) -> Iterator[None]:
    def in_turn(number: int, source: Source, target: Any) -> list[str]:
        told = _copied(source, target)
        if number % 2 == 0:
            for name, value in _live(target).items():
                if name.endswith(".out"):
                    value.copy_(source[name].t())
        return told

    yield from _carried(probe, in_turn)


@fault("verl #7904", "from the second sync on the sampler gets garbage", phases=PHASES)
def garbage_from_the_second(probe: Probe) -> Iterator[None]:
    def rolled(number: int, source: Source, target: Any) -> list[str]:
        told = _copied(source, target)
        if number > 2:  # the first sync writes twice
            for value in _live(target).values():
                value.copy_(value.roll(1))
        return told

    yield from _carried(probe, rolled)


@fault("verl #7495", "a base that is frozen is sent, and what has learned is not", phases=PHASES)
def frozen_base(probe: Probe) -> Iterator[None]:
    base: dict[str, Tensor] = {}

    def as_it_was(number: int, source: Source, target: Any) -> list[str]:
        for name, value in source.items():
            base.setdefault(name, value.clone())
        return _copied(base, target)

    yield from _carried(probe, as_it_was)


@fault("a broadcast in fp16", "weights are rounded to half precision on the way", phases=PHASES)
def half_precision(probe: Probe) -> Iterator[None]:
    def rounded(number: int, source: Source, target: Any) -> list[str]:
        return _copied({name: value.half().float() for name, value in source.items()}, target)

    yield from _carried(probe, rounded)


@fault("vllm #42821", "a second load adds to the first", phases=PHASES)
def load_adds_up(probe: Probe) -> Iterator[None]:
    def added(number: int, source: Source, target: Any) -> list[str]:
        for name, value in _live(target).items():
            value.copy_(torch.where(value.isnan(), 0.0, value) + source[name])
        return list(source)

    yield from _carried(probe, added)


@fault("TRL #5312", "after a sleep the sampler has the weights of before", phases=("sync", "rollout", "forward"))
def lost_in_a_sleep(probe: Probe) -> Iterator[None]:
    sync = honest(SYNC)
    first: dict[str, Tensor] = {}

    def asleep(policy: Any, target: Any, version: int, previous: Any, **others: Any) -> Any:
        for name, value in policy.decoder().named_parameters():
            first.setdefault(name, value.detach().clone())
        receipt = sync(policy, target, version, previous, **others)
        if version == 2:
            probe.reached()
            for name, value in _live(target).items():
                value.data.copy_(first[name])
        return receipt

    with replaced(SYNC, asleep):
        yield


@fault("TRL #3679", "completions are drawn with the first weights for ever", phases=("sync", "rollout", "forward"))
def never_synced(probe: Probe) -> Iterator[None]:
    sync = honest(SYNC)

    def once(policy: Any, target: Any, version: int, previous: Any, **others: Any) -> Any:
        if previous is None:
            return sync(policy, target, version, previous, **others)
        probe.reached()
        return previous

    with replaced(SYNC, once):
        yield


@fault("UniRL #229", "completions bear the digest of other weights than drew them", phases=("rollout",))
def digest_of_old_weights(probe: Probe) -> Iterator[None]:
    made = honest(f"{SAMPLER}._trajectory")
    seen: list[str] = []

    def stamped(sampler: Any, finished: Any) -> Trajectory:
        found: Trajectory = made(sampler, finished)
        ((version, digest),) = found.weights_digests.items()
        seen.append(digest)
        probe.reached(has_effect=seen[0] != digest)
        return replace(found, weights_digests={version: seen[0]})

    with replaced(f"{SAMPLER}._trajectory", stamped):
        yield


@fault("theLMbook #8", "the reference is the policy itself, and moves with it", phases=REFERENCE, setting="updates")
def reference_moves(probe: Probe) -> Iterator[None]:
    class Alias:
        @staticmethod
        def deepcopy(model: Any) -> Any:
            probe.reached()

            class Same(type(model)):  # type: ignore[misc]
                def requires_grad_(self, is_wanted: bool = True) -> Any:
                    return self

            other = object.__new__(Same)
            other.__dict__ = model.__dict__
            return other

    with replaced("rlcore.trainers.models:copy", Alias):
        yield


@fault("cosmos-rl #321", "the reference follows the policy, a step behind", phases=REFERENCE, setting="updates")
def reference_follows(probe: Probe) -> Iterator[None]:
    sync = honest(SYNC)
    states: list[Any] = []
    add = honest("rlcore.recipes.grpo:add_ref_logprobs")

    def remembered(state: Any, batch: Any) -> Any:
        states[:] = [state]
        return add(state, batch)

    def followed(*given: Any, **others: Any) -> Any:
        for state in states:
            probe.reached()
            state.reference.model.load_state_dict(state.decoder.state_dict())
        return sync(*given, **others)

    with replaced(SYNC, followed), replaced("rlcore.recipes.grpo:add_ref_logprobs", remembered):
        yield


FAULTS = (
    sync_noop,
    later_sync_noop,
    head_missing,
    name_not_found,
    fused_in_another_order,
    partial_load,
    second_load_corrupts,
    garbage_from_the_second,
    frozen_base,
    half_precision,
    load_adds_up,
    lost_in_a_sleep,
    never_synced,
    digest_of_old_weights,
    reference_moves,
    reference_follows,
)
