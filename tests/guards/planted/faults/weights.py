"""Faults of a weight sync, and of the reference policy: which weights a sampler, or a penalty, really has."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlcore.data.trajectory import Trajectory
from rlcore.weights.digests import tensor_digests
from tests.guards.planted.fault import Probe, fault, honest, replaced

SYNC = "rlcore.controllers.synchronous:sync"
WRITE = "rlcore.samplers.local_target:LocalTarget.write"
SAMPLER = "rlcore.samplers.torch_sampler:TorchSampler"
PHASES = ("sync",)
REFERENCE = ("reference",)
Source = Mapping[str, Tensor]
Write = Callable[[Source], None]
Live = Mapping[str, Tensor]


def _written(probe: Probe, change: Callable[[int, Source, Live, Write], None]) -> Iterator[None]:
    """Another way of writing: (number of the sync, weights by name, parameters of the target, ours) -> None."""
    write = honest(WRITE)
    versions: set[int] = set()

    @torch.no_grad()
    def written(target: Any, weights: Iterable[tuple[str, Tensor]]) -> None:
        source = dict(weights)
        versions.add(target._begun)
        change(len(versions), source, target._parameters(), lambda given: write(target, given.items()))
        is_first_load = all(value.isnan().all() for value in source.values())
        probe.reached(has_effect=not is_first_load and target.digests(list(source)) != tensor_digests(source))

    with replaced(WRITE, written):
        yield


@fault("torchtitan #2402", "parameters are on meta: the copy does nothing", phases=PHASES)
def sync_noop(probe: Probe) -> Iterator[None]:
    yield from _written(probe, lambda number, source, live, write: None)


@fault("torchtitan #2402", "from the second sync on parameters are on meta: the copy does nothing", phases=PHASES)
def later_sync_noop(probe: Probe) -> Iterator[None]:
    yield from _written(probe, lambda number, source, live, write: write(source) if number == 1 else None)


@fault(
    "torchtitan #2410",
    "the head is not among the weights that are sent",
    phases=PHASES,
    setting="untied",
    leaves=("head",),
)
def head_missing(probe: Probe) -> Iterator[None]:
    def but_the_head(number: int, source: Source, live: Live, write: Write) -> None:
        write({name: value for name, value in source.items() if name != "head"})

    yield from _written(probe, but_the_head)


@fault(
    "torchtitan: strict=False", "a parameter of another name is left out silently", phases=PHASES, leaves=("mlp_norm",)
)
def name_not_found(probe: Probe) -> Iterator[None]:
    def by_name(number: int, source: Source, live: Live, write: Write) -> None:
        write({name: value for name, value in source.items() if "mlp_norm" not in name})

    yield from _written(probe, by_name)


@fault("a converter of fused weights", "the rows of q, k and v are sent as k, q, v", phases=PHASES, leaves=("qkv",))
def fused_in_another_order(probe: Probe) -> Iterator[None]:
    def reordered(number: int, source: Source, live: Live, write: Write) -> None:
        changed = dict(source)
        for name, value in source.items():
            if name.endswith(".qkv"):
                q, k, v = torch.split(value, [value.shape[0] // 2, *[value.shape[0] // 4] * 2])
                changed[name] = torch.cat((k, q, v))
        write(changed)

    yield from _written(probe, reordered)


@fault("prime-rl #3175", "a load stops in the middle of a parameter", phases=PHASES, leaves=("embedding",))
def partial_load(probe: Probe) -> Iterator[None]:
    def half(number: int, source: Source, live: Live, write: Write) -> None:
        for name, value in source.items():
            end = len(value) // 2 if name == "embedding" else len(value)
            live[name][:end].copy_(value[:end])

    yield from _written(probe, half)


@fault("SkyRL #1680", "a second load transposes what the first has laid out", phases=PHASES, leaves=("out",))
def second_load_corrupts(probe: Probe) -> Iterator[None]:
    loads: Counter[str] = Counter()

    def in_turn(number: int, source: Source, live: Live, write: Write) -> None:
        write(source)
        loads.update(list(source))
        for name, value in source.items():
            if name.endswith(".out") and loads[name] % 2 == 0:
                live[name].copy_(value.t())

    yield from _written(probe, in_turn)


@fault("verl #7904", "from the second sync on the sampler gets garbage", phases=PHASES)
def garbage_from_the_second(probe: Probe) -> Iterator[None]:
    def rolled(number: int, source: Source, live: Live, write: Write) -> None:
        write(source)
        if number > 1:
            for name in source:
                live[name].copy_(live[name].roll(1))

    yield from _written(probe, rolled)


@fault("verl #7495", "a base that is frozen is sent, and what has learned is not", phases=PHASES)
def frozen_base(probe: Probe) -> Iterator[None]:
    base: dict[str, Tensor] = {}

    def as_it_was(number: int, source: Source, live: Live, write: Write) -> None:
        for name, value in source.items():
            if not value.isnan().any():
                base.setdefault(name, value.clone())
        write({name: base.get(name, value) for name, value in source.items()})

    yield from _written(probe, as_it_was)


@fault("a broadcast in fp16", "weights are rounded to half precision on the way", phases=PHASES)
def half_precision(probe: Probe) -> Iterator[None]:
    def rounded(number: int, source: Source, live: Live, write: Write) -> None:
        write({name: value.half().float() for name, value in source.items()})

    yield from _written(probe, rounded)


@fault("vllm #42821", "a second load adds to the first", phases=PHASES)
def load_adds_up(probe: Probe) -> Iterator[None]:
    def added(number: int, source: Source, live: Live, write: Write) -> None:
        for name, value in source.items():
            live[name].copy_(torch.where(live[name].isnan(), 0.0, live[name]) + value)

    yield from _written(probe, added)


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
            for name, value in target._parameters().items():
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
