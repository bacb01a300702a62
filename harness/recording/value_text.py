"""A tensor as a person looks at it: its range, and its elements, all of a small one, both ends of a large one.

    [0, 0]   0.5  -1.0   0.25
    [1, 0]   nan (7fc00000)  ...

Each line begins with the indices of its first element, and stays within one row of the last dimension.
"""

from collections.abc import Iterator, Sequence

import torch

from harness.recording.tensors import NOT_OF_DTYPE, tensor_bytes
from harness.trace.element_diff import coordinates
from harness.trace.values import ELEMENT_BYTES, shown

MAX_ELEMENTS = 64
"""Of so many elements all are shown."""
NUM_AT_END = 8
"""So many at each end of a tensor that has more."""
LINE_ELEMENTS = 8


def value_range(tensor: torch.Tensor) -> dict[str, float | int]:
    """Least, largest and mean of the finite elements, and how many are NaN or infinite; nothing for no numbers."""
    if not tensor.numel() or tensor.is_complex():
        return {}
    try:
        wide = tensor.detach().double()
    except RuntimeError as error:  # two numbers in a byte: torch computes nothing with float4
        if NOT_OF_DTYPE not in str(error):
            raise
        return {}
    finite = wide[wide.isfinite()]
    found: dict[str, float | int] = {"nan": int(wide.isnan().sum()), "inf": int(wide.isinf().sum())}
    if finite.numel():
        found |= {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}
    return found


def elements_text(dtype: str, part: torch.Tensor, ranges: Sequence[range]) -> str:
    """The elements of a part with all their digits; as torch prints them where the dtype is not understood.

    `ranges` are the indices that the part has in the whole tensor, in each dimension, of which it has as many.
    """
    num_elements = part.numel()
    if dtype not in ELEMENT_BYTES:
        return str(part)
    if num_elements <= MAX_ELEMENTS:
        return "\n".join(_lines(dtype, part, ranges, 0, num_elements)) or "no elements"
    head = _lines(dtype, part, ranges, 0, NUM_AT_END)
    tail = _lines(dtype, part, ranges, num_elements - NUM_AT_END, num_elements)
    return "\n".join([*head, f"... {num_elements - 2 * NUM_AT_END:,} more", *tail])


def _lines(dtype: str, part: torch.Tensor, ranges: Sequence[range], begin: int, end: int) -> list[str]:
    """The elements of these numbers, in C order."""
    data, size = bytes(tensor_bytes(part.reshape(-1)[begin:end])), ELEMENT_BYTES[dtype]
    texts = [shown(dtype, int.from_bytes(data[at : at + size], "little")) for at in range(0, len(data), size)]
    if len(texts) <= LINE_ELEMENTS and (part.dim() == 0 or ranges == [range(len(texts))]):  # a line that is all of it
        return ["  ".join(texts)] if texts else []
    width = max(map(len, texts), default=0)
    lines = [
        (str(coordinates(first, ranges)), "  ".join(text.rjust(width) for text in texts[first - begin : last - begin]))
        for first, last in _spans(begin, end, len(ranges[-1]))
    ]
    label_width = max((len(label) for label, _ in lines), default=0)
    return [f"{label:<{label_width}}  {elements}" for label, elements in lines]


def _spans(begin: int, end: int, row: int) -> Iterator[tuple[int, int]]:
    """(first, end) of each line."""
    while begin < end:
        last = min(end, begin + LINE_ELEMENTS, (begin // row + 1) * row)
        yield begin, last
        begin = last
