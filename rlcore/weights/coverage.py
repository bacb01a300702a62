"""Which parameter of a sampler is which of the policy, and whether all of it was written.

A parameter that was never written may look right: it may be the old one, unchanged. So each is poisoned with NaN
before it is written.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from rlcore.errors import WeightSyncError
from rlcore.weights.receipts import Check

Groups = tuple[tuple[str, ...], ...]


def tied_names(policy: nn.Module) -> Groups:
    """Groups of names whose parameters are one piece of memory, in the order of the model."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, parameter in policy.named_parameters(remove_duplicate=False):
        place = (parameter.device, parameter.data_ptr(), parameter.shape, parameter.stride())
        has_memory = parameter.numel() and not parameter.is_meta
        groups.setdefault(place if has_memory else (name,), []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def check_names(source: Mapping[str, Tensor], targets: Mapping[str, Tensor], tied: Groups) -> None:
    """Every parameter of the policy has one in the sampler, by name, type and shape, or is tied to one that has.

    Raises WeightSyncError with the parameter.
    """
    partners = {name: group for group in tied for name in group}
    for name in source:
        if name not in targets and not any(partner in targets for partner in partners.get(name, ())):
            raise _uncovered(name, "is missing in the sampler", remedy="build the sampler from the policy's own model")
    for name, target in targets.items():
        if name not in source:
            raise _uncovered(name, "of the sampler is no parameter of the policy")
        wanted = source[name]
        if target.is_meta or wanted.is_meta:
            raise _uncovered(name, "has no memory (it is on meta): a copy into it, or of it, does nothing")
        if target.shape != wanted.shape or target.dtype != wanted.dtype:
            raise _uncovered(
                name, f"is {_described(target)} in the sampler", legal=f"{_described(wanted)}, as the policy has it"
            )
        if not target.is_floating_point():
            raise _uncovered(name, f"is {_described(target)}", legal="floats: others cannot be poisoned with NaN")


@torch.no_grad()
def poison(targets: Mapping[str, Tensor]) -> None:
    """NaN in every element."""
    for target in targets.values():
        target.fill_(float("nan"))


def check_live(targets: Mapping[str, Tensor], again: Mapping[str, Tensor]) -> None:
    """A sampler's parameters, asked for again, are the same memory: what is written into a copy is lost.

    Raises WeightSyncError with the parameter.
    """
    for name, target in targets.items():
        if name not in again or again[name].data_ptr() != target.data_ptr():
            raise _uncovered(name, "of the sampler is a copy each time it is asked for: what is written there is lost")


def check_reported(reported: Iterable[str], targets: Mapping[str, Tensor]) -> None:
    """What a transport says it has written is each parameter, once; raises WeightSyncError with the parameter."""
    counts = Counter(reported)
    for name in (*targets, *counts):
        if name not in targets:
            raise _uncovered(name, "was written, and the sampler has no such parameter")
        if counts[name] != 1:
            raise _uncovered(name, f"was written {counts[name]} times", legal="once")


def check_written(name: str, source: Tensor, target: Tensor) -> None:
    """No poison is left; raises WeightSyncError with the number of elements that still hold it."""
    num_left = int((target.isnan() & ~source.to(target.device).isnan()).sum())
    if num_left:
        raise _uncovered(name, f"was not written: {num_left} of its {target.numel()} elements are poison still")


def _uncovered(name: str, what: str, *, legal: str = "", remedy: str = "") -> WeightSyncError:
    return WeightSyncError(what, check=Check.COVERAGE, parameter=name, legal=legal, remedy=remedy)


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
