"""What can be repeated in an unchanged program, to distinguish a transient fault from a persistent one.

| differs                              | is done again                                                     |
|---|---|
| weights or moments after a step      | the optimizer's step, from weights and moments that were kept      |
| gradients, where a closure made them | forward and backward, with the same random states                  |
| anything else                        | each version is written into the memory of all ranks, and read     |

Forward and backward of a program without a closure cannot be repeated: its data and its code are its own.
"""

import copy as copying
import inspect
import random
import sys
from collections.abc import Mapping, Sequence

import torch
from torch import distributed
from torch.optim import Optimizer

from harness.recording.cuda_state import is_used
from harness.recording.sentinel.comparison import Table, differences, named_ranks
from harness.recording.sentinel.peers import Peers
from harness.recording.sentinel.replicas import Copy, digests_of
from harness.recording.sentinel.sentinel_report import Difference, Fault

MAX_WRITTEN = 4
"""So many differing tensors are written again."""


class KeptStep:
    """Weights, moments and settings of an optimizer before a step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._states = {each: dict(optimizer.state[each]) for each in parameters if each in optimizer.state}
        self._groups = [
            {name: copying.copy(value) for name, value in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        live = [*parameters, *(value for state in self._states.values() for value in state.values())]
        self._tensors = [(each, each.detach().clone()) for each in live if isinstance(each, torch.Tensor)]
        self._without = [each for each in parameters if each not in optimizer.state]

    def repeat(self) -> None:
        """Restore what was kept, and step again; whatever the optimizer raises."""
        for parameter in self._without:
            self._optimizer.state.pop(parameter, None)
        for parameter, state in self._states.items():
            self._optimizer.state[parameter] = dict(state)
        for group, settings in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(settings)
        with torch.no_grad():
            for tensor, kept in self._tensors:
                tensor.copy_(kept)
            inspect.unwrap(type(self._optimizer).step)(self._optimizer)


class KeptRandomStates:
    """States of the random-number generators of this process; made and restored without drawing."""

    def __init__(self) -> None:
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._numpy = None if (numpy := sys.modules.get("numpy.random")) is None else numpy.get_state()
        self._cuda = torch.cuda.get_rng_state_all() if is_used() else None

    def restore(self) -> None:
        """Put the states back."""
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """States of torch's generators by name."""
        cuda = {f"random.cuda{index}": state for index, state in enumerate(self._cuda or ())}
        return {"random.torch": self._torch, **cuda}


def classify(
    first: Mapping[int, Table], second: Mapping[int, Table], found: Sequence[Difference]
) -> tuple[Fault, tuple[int, ...], bool]:
    """Return (fault, ranks at fault, whether all ranks now hold what is right) of work that was done twice.

    Right is what all ranks have after the second time, if it is what a rank had after the first time.
    """
    again = differences(second)
    keys = {key for table in first.values() for key in table if any(key[:2] == (d.kind, d.name) for d in found)}
    changed = {rank for rank in first for key in keys if key in first[rank] and first[rank][key] != second[rank][key]}
    repeating = set(first) - changed
    if not again and repeating:
        return Fault.TRANSIENT, tuple(sorted(changed)), True
    if again and (persistent := set(named_ranks(again)) & set(named_ranks(found))) and not changed - persistent:
        return Fault.PERSISTENT, tuple(sorted(changed or persistent)), False
    return Fault.UNKNOWN, named_ranks(found), False


def write_again(peers: Peers, copies: Sequence[Copy], found: Sequence[Difference]) -> tuple[Fault, tuple[int, ...]]:
    """Write each version of the first differing tensors into all ranks' memory, and read it; return fault and ranks.

    Memory that does not hold what was written is at fault; else the fault was transient. The version of most ranks is
    written last, and stays.
    """
    bad: set[int] = set()
    for each in found[:MAX_WRITTEN]:
        own = next((c for c in copies if (c.key.kind, c.key.name) == (each.kind, each.name)), None)
        is_holder = own is not None and distributed.get_rank() in each.digests
        versions = [
            (digest, peers.broadcast(None if own is None else own.local, source)) for digest, source in _versions(each)
        ]
        for digest, data in versions:
            read = {}
            if own is not None and is_holder:
                with torch.no_grad():
                    own.local.copy_(data.view(own.local.dtype).reshape(own.local.shape))
                read = digests_of([own])
            answers = peers.gather(next(iter(read.values()), ""))
            bad |= {rank for rank, answer in answers.items() if rank in each.digests and answer != digest}
    return (Fault.PERSISTENT, tuple(sorted(bad))) if bad else (Fault.TRANSIENT, named_ranks(found))


def probe_memory(copies: Sequence[Copy]) -> bool:
    """Return whether the memory of these tensors holds what is written to it: the inverse of its bits, then they."""
    holds = True
    for each in copies:
        memory = each.local.detach().reshape(-1).view(torch.uint8)
        original = memory.clone()
        for pattern in (~original, original):
            memory.copy_(pattern)
            holds = holds and torch.equal(memory, pattern)
    return holds


def _versions(difference: Difference) -> list[tuple[str, int]]:
    """(digest, first rank that has it) of each version; that of most ranks comes last."""
    digests = [*difference.digests.values()]
    first = {digest: rank for rank, digest in reversed(difference.digests.items())}
    return sorted(first.items(), key=lambda each: (digests.count(each[0]), each[1]))
