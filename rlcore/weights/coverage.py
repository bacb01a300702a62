"""Coverage: each parameter of the policy has a counterpart in the sampler, and is written exactly once.

A parameter that was never written may look right: it may be the old one, unchanged. So each is poisoned with NaN
before it is written.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import tensor_digest
from rlcore.errors import WeightSyncError
from rlcore.weights.receipts import Check
from rlcore.weights.target import Difference, ParameterSpec

NOT_WRITTEN = "look for what skips it: a name that strict=False ignores, a copy to meta, a load that stops early"
"""Remedy for a parameter that no write has reached."""
Groups = tuple[tuple[str, ...], ...]


def tied_names(policy: nn.Module) -> Groups:
    """Return groups of names whose parameters are one piece of memory, in the order of the model."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, parameter in policy.named_parameters(remove_duplicate=False):
        place = (parameter.device, parameter.data_ptr(), parameter.shape, parameter.stride())
        has_memory = parameter.numel() and not parameter.is_meta
        groups.setdefault(place if has_memory else (name,), []).append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def check_names(source: Mapping[str, ParameterSpec], parameters: Mapping[str, ParameterSpec], tied: Groups) -> None:
    """Check that every parameter of the policy, or one tied to it, is in the sampler with its type and shape.

    Raises WeightSyncError with the parameter.
    """
    partners = {name: group for group in tied for name in group}
    for name in source:
        if name not in parameters and not any(partner in parameters for partner in partners.get(name, ())):
            raise _uncovered(name, "is missing in the sampler", remedy="build the sampler from the policy's own model")
    for name, found in parameters.items():
        if name not in source:
            raise _uncovered(name, "of the sampler is not a parameter of the policy")
        wanted = source[name]
        if found.is_meta or wanted.is_meta:
            raise _uncovered(name, "has no memory (it is on meta): a copy to or from it has no effect")
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise _uncovered(name, f"is {found} in the sampler", legal=f"{wanted}, as the policy has it")
        if not found.dtype.is_floating_point:
            raise _uncovered(name, f"is {found}", legal="floats: others cannot be poisoned with NaN")


def check_poisoned(parameters: Mapping[str, ParameterSpec], found: Mapping[str, str]) -> None:
    """Check that poison arrived in every parameter: what is written into a copy is lost.

    `found` holds the digests after the poison. Raises WeightSyncError with the parameter.
    """
    poisons: dict[tuple[object, ...], str] = {}
    for name, spec in parameters.items():
        key = spec.dtype, spec.shape
        if key not in poisons:
            poisons[key] = tensor_digest(torch.full(spec.shape, float("nan"), dtype=spec.dtype))
        if found.get(name) != poisons[key]:
            raise _uncovered(name, "of the sampler was written, and is as it was: what is written there is lost")


def check_reported(reported: Iterable[str], names: Iterable[str]) -> None:
    """Check that what was reported as written is each parameter, once; raises WeightSyncError with the parameter."""
    counts, wanted = Counter(reported), dict.fromkeys(names)
    for name in (*wanted, *counts):
        if name not in wanted:
            raise _uncovered(name, "was written, and the sampler has no such parameter")
        if counts[name] != 1:
            skipped = (
                f"was not written: the transport skipped it ({len(wanted.keys() - counts.keys())} of {len(wanted)})"
            )
            raise _uncovered(
                name,
                f"was written {counts[name]} times" if counts[name] else skipped,
                legal="once",
                remedy=NOT_WRITTEN if not counts[name] else "",
            )


def check_written(name: str, source: Tensor, difference: Difference, extent: str) -> None:
    """Check that no poison is left; raises WeightSyncError with the number of elements that still hold it.

    `extent` says how many parameters are wrong.
    """
    num_left = difference.num_nan - int(source.isnan().sum())
    if num_left > 0:
        raise _uncovered(
            name,
            f"was not written: {num_left} of its {source.numel()} elements still hold poison ({extent})",
            remedy=NOT_WRITTEN,
        )


def _uncovered(name: str, what: str, *, legal: str = "", remedy: str = "") -> WeightSyncError:
    return WeightSyncError(what, check=Check.COVERAGE, parameter=name, legal=legal, remedy=remedy)
