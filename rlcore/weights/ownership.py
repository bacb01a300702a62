"""Whether a sampler's weights are in memory of their own: where they are not, training changes them unseen."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.weights.coverage import Groups
from rlcore.weights.receipts import Check


@dataclass(frozen=True, slots=True, order=True)
class _Span:
    """The memory a parameter lies in, from its first byte to its last; what lies between belongs to it too."""

    device: str
    begin: int
    end: int
    name: str
    is_policys: bool

    @classmethod
    def of(cls, name: str, tensor: Tensor, *, is_policys: bool) -> "_Span":
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        begin = tensor.data_ptr()
        return cls(str(tensor.device), begin, begin + reach * tensor.element_size(), name, is_policys)


def check_ownership(source: Mapping[str, Tensor], targets: Mapping[str, Tensor], tied: Groups) -> None:
    """No parameter of the sampler shares memory with the policy, or with another that is not tied to it.

    Raises WeightSyncError with the parameter.
    """
    partners = {name: group for group in tied for name in group}
    spans = [_Span.of(name, tensor, is_policys=False) for name, tensor in targets.items() if tensor.numel()]
    spans += [_Span.of(name, tensor, is_policys=True) for name, tensor in source.items() if tensor.numel()]
    reaching: list[_Span] = []
    for span in sorted(spans):
        reaching = [before for before in reaching if before.device == span.device and before.end > span.begin]
        for other in reaching:
            _check_pair(span, other, partners)
        reaching.append(span)


def _check_pair(span: _Span, other: _Span, partners: Mapping[str, tuple[str, ...]]) -> None:
    if span.is_policys and other.is_policys:
        return
    if span.is_policys or other.is_policys:
        own, policys = (other, span) if span.is_policys else (span, other)
        raise WeightSyncError(
            f"of the sampler is in the memory of {policys.name} of the policy",
            check=Check.OWNERSHIP,
            parameter=own.name,
            remedy="give the sampler a deep copy: training would change the weights it samples with",
        )
    if other.name not in partners.get(span.name, ()):
        raise WeightSyncError(
            f"of the sampler is in the memory of {other.name}, which it is not in the policy",
            check=Check.OWNERSHIP,
            parameter=span.name,
            remedy="untie them in the sampler",
        )
