"""Ownership: the sampler's weights share no memory with the policy, so that training cannot change them."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from harness.bits.tensor_digests import tensor_digest
from rlcore.errors import WeightSyncError
from rlcore.weights.coverage import Groups
from rlcore.weights.receipts import Check
from rlcore.weights.target import ParameterSpec, Region, WeightTarget, address_space

Specs = Mapping[str, ParameterSpec]


class _Span(NamedTuple):
    """The memory of one parameter; spans sort by where they begin."""

    region: Region
    name: str
    is_policys: bool


def check_ownership(source: Specs, parameters: Specs, tied: Groups) -> None:
    """Check that no parameter of the sampler overlaps the policy, or another parameter that is not tied to it.

    Addresses are compared within a process; `probe_ownership` is for other processes. Raises WeightSyncError with the
    parameter.
    """
    partners = {name: group for group in tied for name in group}
    spans = [_Span(spec.region, name, False) for name, spec in parameters.items() if spec.region is not None]
    spans += [_Span(spec.region, name, True) for name, spec in source.items() if spec.region is not None]
    reaching: list[_Span] = []
    for span in sorted(spans):
        reaching = [before for before in reaching if _is_reaching(before.region, span.region)]
        for other in reaching:
            _check_pair(span, other, partners)
        reaching.append(span)


def _is_reaching(before: Region, region: Region) -> bool:
    return before.end > region.begin and before.device == region.device and before.process == region.process


def _check_pair(span: _Span, other: _Span, partners: Mapping[str, tuple[str, ...]]) -> None:
    if span.is_policys and other.is_policys:
        return
    if span.is_policys or other.is_policys:
        own, policys = (other, span) if span.is_policys else (span, other)
        raise _shared(own.name, f"is in the memory of {policys.name} of the policy")
    if other.name not in partners.get(span.name, ()):
        raise WeightSyncError(
            f"of the sampler is in the memory of {other.name}, which it is not in the policy",
            check=Check.OWNERSHIP,
            parameter=span.name,
            remedy="untie them in the sampler",
        )


def is_elsewhere(parameters: Specs) -> bool:
    """Whether some parameter is in the memory of another process, whose addresses say nothing here."""
    here = address_space()
    return any(spec.region is not None and spec.region.process != here for spec in parameters.values())


def probe_ownership(
    source: Mapping[str, Tensor], expected: Mapping[str, str], target: WeightTarget, names: Iterable[str]
) -> None:
    """Poison the parameters of a target in another process one by one, and check that the policy does not change.

    Memory that processes share has another address in each, so only its content shows it. Call it after `begin`, and
    before the weights are written. A parameter of the policy that is poisoned with its namesake is restored. Raises
    WeightSyncError with the parameter.
    """
    for name in names:
        if name not in source:
            continue
        kept = source[name].clone()
        target.poison([name])
        if tensor_digest(source[name]) != expected[name] and tensor_digest(kept) == expected[name]:
            source[name].copy_(kept)
            raise _shared(name, "shares memory with the policy: poison written there arrived here")
    for name, tensor in source.items():
        if tensor_digest(tensor) != expected[name]:
            raise WeightSyncError(
                "of the policy was overwritten by poison for another parameter of the sampler",
                check=Check.OWNERSHIP,
                parameter=name,
                remedy="give the sampler a deep copy; this policy's values are lost: resume from a checkpoint",
            )


def _shared(name: str, what: str) -> WeightSyncError:
    return WeightSyncError(
        f"of the sampler {what}",
        check=Check.OWNERSHIP,
        parameter=name,
        remedy="give the sampler a deep copy: training would change the weights it samples with",
    )
