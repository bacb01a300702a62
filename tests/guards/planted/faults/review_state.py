"""Faults of syncs, references and checkpoints that a reviewer planted, who had not written the checks."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlcore.models.checkpoints import Part
from rlcore.trainers.trainer import Trainer
from rlcore.weights.source import LiveWeights
from tests.guards.planted.fault import RESUME, Probe, fault, honest, replaced
from tests.guards.planted.faults.review_learning import STEP

SYNC = "rlcore.controllers.synchronous:sync"
SENT = ("sync", "optimizer")
REFERENCE = ("reference",)
READ = "rlcore.checkpoints.state_shards:read_state"
LOAD = "rlcore.controllers.setup:resume"
BULK = "rlcore.recipes.policy_pass:logprobs_in_bulk"
BUILD = "rlcore.trainers.trainer:Models.build"
SAVE = "rlcore.checkpoints.resume:save_decoder"
PERIOD = 5
NUM_LANES = 4.0


@fault("review: a cadence of syncs", "every fifth sync is left out", phases=SENT, setting="seven")
def fifth_sync_left_out(probe: Probe) -> Iterator[None]:
    sync = honest(SYNC)

    def mostly(policy: Any, target: Any, version: int, previous: Any, **others: Any) -> Any:
        is_left_out = version % PERIOD == 0 and previous is not None
        probe.reached(has_effect=is_left_out)
        return previous if is_left_out else sync(policy, target, version, previous, **others)

    with replaced(SYNC, mostly):
        yield


def _stale(probe: Probe, stale_version: int) -> Iterator[None]:
    """The weights of the sync before, as those of this version; nobody is told that the policy has learned."""
    sync = honest(SYNC)
    before: list[LiveWeights] = []

    def snapshot(policy: Any, target: Any, version: int, previous: Any, **others: Any) -> Any:
        is_stale = version == stale_version and bool(before)
        probe.reached(has_effect=is_stale)
        sent = before[0] if is_stale else policy
        if is_stale:
            others.pop("has_learned", None)
        receipt = sync(sent, target, version, previous, **others)
        before[:] = [LiveWeights(copy.deepcopy(policy.decoder()))]
        return receipt

    with replaced(SYNC, snapshot):
        yield


@fault("review: a snapshot that is reused", "an old snapshot is sent as new", phases=SENT)
def stale_snapshot(probe: Probe) -> Iterator[None]:
    yield from _stale(probe, 3)


@fault("review: a snapshot that is reused", "an old snapshot is sent as new, in the last step", phases=SENT)
def stale_snapshot_at_the_end(probe: Probe) -> Iterator[None]:
    yield from _stale(probe, 5)


@fault("review: .data", "from step 2 on the reference has the policy's memory", phases=REFERENCE, setting="updates")
def reference_in_the_policys_memory(probe: Probe) -> Iterator[None]:
    add, sync = honest("rlcore.recipes.grpo:add_ref_logprobs"), honest(SYNC)
    states: list[Any] = []

    def remembered(state: Any, batch: Any) -> Any:
        states[:] = [state]
        return add(state, batch)

    def and_shared(policy: Any, target: Any, version: int, previous: Any, **others: Any) -> Any:
        for state in states if version >= 2 else ():
            probe.reached()
            for frozen, parameter in zip(
                state.reference.model.parameters(), state.policy.model.parameters(), strict=True
            ):
                frozen.data = parameter.data
        return sync(policy, target, version, previous, **others)

    with replaced("rlcore.recipes.grpo:add_ref_logprobs", remembered), replaced(SYNC, and_shared):
        yield


@fault(
    "review: a reference is made first",
    "the reference is the policy before its warm start",
    phases=REFERENCE,
    setting="updates",
)
def reference_before_the_warm_start(probe: Probe) -> Iterator[None]:
    build = honest(BUILD)
    first: list[Any] = []

    def of_the_first(models: Any, name: str) -> Any:
        trainer = build(models, name)
        if name == "policy":
            first[:] = [copy.deepcopy(trainer.model)]
        elif name == "reference":
            probe.reached()
            trainer.model.load_state_dict(first[0].state_dict())
        return trainer

    with replaced(BUILD, of_the_first):
        yield


@fault("review: TRL's reference", "the reference is not divided by the temperature", phases=REFERENCE, setting="cold")
def reference_at_one(probe: Probe) -> Iterator[None]:
    bulk = honest(BULK)

    def at_one(state: Any, reader: Any, batch: Any) -> Tensor:
        if reader is not state.reference:
            found: Tensor = bulk(state, reader, batch)
            return found
        probe.reached()
        reading = partial(honest("rlcore.recipes.policy_pass:logprobs"), temperature=1.0)
        read: Tensor = honest("rlcore.recipes.policy_pass:read_in_bulk")(state, reader, batch, reading)
        return read

    with replaced(BULK, at_one):
        yield


@fault(
    "review: verl's dynamic batches",
    "results of passes are joined in the order of passes",
    phases=REFERENCE,
    setting="updates",
)
def joined_by_pass(probe: Probe) -> Iterator[None]:
    in_bulk = honest("rlcore.recipes.policy_pass:in_bulk")
    divide = honest("rlcore.trainers.scoring:microbatches_by_budget")

    def joined(batch: Any, reader: Any, reading: Any, *, token_budget: int) -> Tensor:
        found: Tensor = in_bulk(batch, reader, reading, token_budget=token_budget)
        if reader.name != "reference":
            return found
        passes = divide(batch, range(len(found)), token_budget=token_budget)
        order = [sample for each in passes for sample in each.samples]
        moved = torch.where(batch["loss_mask"], found[order], 0.0)
        probe.reached(has_effect=not torch.equal(moved, found))
        return moved

    with replaced("rlcore.recipes.policy_pass:in_bulk", joined):
        yield


@fault(
    "review: a count that is guessed", "a resumed optimizer counts microbatches as steps", phases=(RESUME, "optimizer")
)
def steps_of_microbatches(probe: Probe) -> Iterator[None]:
    read = honest(READ)

    def counted(*given: Any) -> Any:
        probe.reached()
        state = read(*given)
        return {name: torch.full_like(v, NUM_LANES) if name.endswith(".step") else v for name, v in state.items()}

    with replaced(READ, counted):
        yield


@fault("review: a count that is guessed later", "the same, from the first update on", phases=(RESUME, "optimizer"))
def steps_of_microbatches_later(probe: Probe) -> Iterator[None]:
    read, step = Trainer.read_state, Trainer.optimizer_step
    resumed: list[Any] = []

    def remembered(trainer: Trainer, path: Any) -> None:
        read(trainer, path)
        resumed.append(trainer)

    def counted(trainer: Trainer, **given: Any) -> float:
        if trainer in resumed:
            probe.reached()
            resumed.remove(trainer)
            for state in trainer.optimizer.state.values():
                state["step"].fill_(NUM_LANES)
        return step(trainer, **given)

    with replaced("rlcore.trainers.trainer:Trainer.read_state", remembered), replaced(STEP, counted):
        yield


@fault("review: a list of moments", "moments are saved in another order of parameters", phases=(RESUME, "optimizer"))
def moments_saved_by_position(probe: Probe) -> Iterator[None]:
    write = honest("rlcore.checkpoints.state_shards:write_state")
    others = {"attention_norm.exp_avg": "mlp_norm.exp_avg", "mlp_norm.exp_avg": "attention_norm.exp_avg"}

    def exchanged(path: Any, state: dict[str, Tensor], group: Any) -> None:
        probe.reached()
        named = {name: ".".join(name.split(".")[-2:]) for name in state}
        write(path, {name.replace(end, others.get(end, end)): state[name] for name, end in named.items()}, group)

    with replaced("rlcore.checkpoints.state_shards:write_state", exchanged):
        yield


@fault(
    "review: a text of 6 digits",
    "an adaptive coefficient is saved with 6 digits",
    phases=(RESUME, "reward"),
    setting="uneven",
)
def coefficient_of_6_digits(probe: Probe) -> Iterator[None]:
    save = honest("rlcore.checkpoints.resume:save")

    def short(directory: Any, step: int, tensors: Any, values: Any, **others: Any) -> Any:
        kept = float(f"{values['kl_coef']:.6g}")
        probe.reached(has_effect=kept != values["kl_coef"])
        return save(directory, step, tensors, {**values, "kl_coef": kept}, **others)

    with replaced("rlcore.checkpoints.resume:save", short):
        yield


@fault(
    "review: gate_proj and up_proj", "two projections are exchanged in a checkpoint, written and read", phases=(RESUME,)
)
def projections_exchanged(probe: Probe) -> Iterator[None]:
    parts = honest("rlcore.models.checkpoints:hub_parts")
    others = {"gate_proj": "up_proj", "up_proj": "gate_proj"}

    def exchanged(config: Any) -> Iterator[Part]:
        probe.reached()
        for part in parts(config):
            yield replace(part, name=".".join(others.get(each, each) for each in part.name.split(".")))

    with replaced("rlcore.models.checkpoints:hub_parts", exchanged):
        yield


@fault("review: saved before the sync", "a resumed sampler has the weights of a step before", phases=(RESUME, *SENT))
def sampler_resumes_with_its_own(probe: Probe) -> Iterator[None]:
    sync, save, resume = honest(SYNC), honest(SAVE), honest(LOAD)
    sent: list[Any] = []
    own: list[dict[str, Tensor]] = []

    def remembered(policy: Any, target: Any, version: int, previous: Any, **others: Any) -> Any:
        if own and previous is None:
            probe.reached()
            older = copy.deepcopy(policy.decoder())
            older.load_state_dict(own.pop())
            return sync(LiveWeights(older), target, version, previous, **others)
        sent[:] = [*sent[-1:], copy.deepcopy(policy.decoder().state_dict())]
        return sync(policy, target, version, previous, **others)

    def and_the_samplers(decoder: Any, path: Any) -> None:
        save(decoder, path)
        torch.save(sent[0], path / "sampler.pt")

    def and_read(state: Any, run: Any) -> Any:
        found = resume(state, run)
        own.append(torch.load(found.path / "policy" / "sampler.pt"))
        return found

    with replaced(SYNC, remembered), replaced(SAVE, and_the_samplers), replaced(LOAD, and_read):
        yield


FAULTS = (
    fifth_sync_left_out,
    stale_snapshot,
    stale_snapshot_at_the_end,
    reference_in_the_policys_memory,
    reference_before_the_warm_start,
    reference_at_one,
    joined_by_pass,
    steps_of_microbatches,
    steps_of_microbatches_later,
    moments_saved_by_position,
    coefficient_of_6_digits,
    projections_exchanged,
    sampler_resumes_with_its_own,
)
