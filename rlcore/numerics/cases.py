"""What the probe computes twice: an operation over a batch, with one thread, and what should give the same bits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rlcore.numerics.activations import swiglu
from rlcore.numerics.attention import attention, visible
from rlcore.numerics.embedding import embedding
from rlcore.numerics.linear import linear
from rlcore.numerics.log_softmax import log_softmax
from rlcore.numerics.norms import add_rms_norm, rms_norm

PARTS = tuple(slice(first, first + rows) for first, rows in enumerate((1, 2, 3, 5, 7, 9, 15, 17, 33, 100)))
"""Rows that are computed alone: how many, and from where."""
NUM_ROWS = 128
SEED = 20260301
Compute = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison."""

    what: str
    compute: Compute
    expected: Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Draw:
    """Normal numbers of one type, the same on every device."""

    dtype: torch.dtype
    device: str
    generator: torch.Generator

    @classmethod
    def seeded(cls, dtype: torch.dtype, device: str) -> "Draw":
        """Always the same ones."""
        return cls(dtype, device, torch.Generator().manual_seed(SEED))

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device, self.dtype)


def with_gradients(compute: Callable[..., Tensor], grad: Tensor, *inputs: Tensor) -> list[Tensor]:
    """[result, gradient of each input]."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    with torch.enable_grad():
        result = compute(*leaves)
        return [result.detach(), *torch.autograd.grad(result, leaves, grad)]


def of_products(draw: Draw, shapes: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """Some rows of a product, forward and backward, alone; and the weight's gradient."""
    for inputs, outputs in dict.fromkeys(shapes):
        x, weight, grad = draw(NUM_ROWS, inputs), draw(outputs, inputs), draw(NUM_ROWS, outputs)
        y, dx, dw = with_gradients(linear, grad, x, weight)
        shape = f"{inputs} to {outputs}"
        for part in PARTS:
            compute = partial(with_gradients, partial(_product, weight), grad[part], x[part])
            yield Case(f"{_count(part)} rows of {shape}", compute, (y[part], dx[part]))
        yield Case(f"weight of {shape}", partial(with_gradients, linear, grad, x, weight), (y, dx, dw))


def of_attention(draw: Draw, heads: Sequence[tuple[int, int, int]], length: int) -> Iterator[Case]:
    """A pass in parts: one position decoded, alone, over fewer keys; a shorter pass; a part after a part."""
    for num_heads, num_kv_heads, width in dict.fromkeys(heads):
        q, grad = (draw(2, num_heads, length, width) for _ in range(2))
        k, v = (draw(2, num_kv_heads, length, width) for _ in range(2))
        whole = with_gradients(attention, grad, q, k, v)
        y = whole[0]
        shape = f"heads {num_heads}/{num_kv_heads} of {width}"
        for position in (0, 1, 6, 33, *range(15, length, 16)):  # so that each number of keys a cache is read by comes
            for keys in sorted({position + 1, length}):
                here = slice(position, position + 1)
                part = partial(_part, q[1:], k[1:, :, :keys], v[1:, :, :keys], here)
                yield Case(f"position {position} over {keys} keys, {shape}", part, (y[1:, :, here],))
        for here in (slice(3, 9), slice(length // 3, length - 7)):
            yield Case(
                f"positions {here.start} to {here.stop}, {shape}", partial(_part, q, k, v, here), (y[:, :, here],)
            )
        for count in (1, 5, 16, 33, *range(64, length, 64), length - 1):
            short = partial(listed, attention, *(x[:, :, :count] for x in (q, k, v)))
            yield Case(f"a pass of {count}, {shape}", short, (y[:, :, :count],))
        yield Case(f"gradients, {shape}", partial(with_gradients, attention, grad, q, k, v), whole)


def of_rows(draw: Draw, widths: Sequence[int]) -> Iterator[Case]:
    """Norms, SwiGLU and log-softmax of some rows, forward and backward; the gradients that are sums over rows."""
    for width in dict.fromkeys(widths):
        x, other, grad, weight = draw(NUM_ROWS, width), draw(NUM_ROWS, width), draw(NUM_ROWS, width), draw(width)
        whole = _row_operations(weight, x, other, grad)
        for part in PARTS:
            compute = partial(_row_operations, weight, x[part], other[part], grad[part])
            yield Case(f"{_count(part)} rows of {width}", compute, [result[part] for result in whole])
        tokens = torch.arange(NUM_ROWS, device=x.device) % 7
        yield Case("weight of a norm", *_again(partial(with_gradients, _norm, grad, x, weight)))
        yield Case("an embedding", *_again(partial(with_gradients, partial(embedding, tokens), grad, draw(9, width))))


def _count(part: slice) -> int:
    return int(part.stop - part.start)


def _again(compute: Compute) -> tuple[Compute, Sequence[Tensor]]:
    return compute, compute()


def _product(weight: Tensor, x: Tensor) -> Tensor:
    return linear(x, weight)


def listed(compute: Callable[..., Tensor], *inputs: Tensor) -> Sequence[Tensor]:
    """Compute, and return the result as the one of a list."""
    return [compute(*inputs)]


def _part(q: Tensor, k: Tensor, v: Tensor, here: slice) -> Sequence[Tensor]:
    """Attention of the queries of these positions."""
    seen = visible(torch.full((q.shape[0],), here.start, device=q.device), here.stop - here.start, k.shape[2])
    return [attention(q[:, :, here], k, v, seen)]


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return rms_norm(x, weight, 1e-6)


def _norm_of_sum(x: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    total, normed = add_rms_norm(x, other, weight, 1e-6)
    return total + normed


def _logprobs(logits: Tensor) -> Tensor:
    return log_softmax(logits).to(logits.dtype)


def _row_operations(weight: Tensor, x: Tensor, other: Tensor, grad: Tensor) -> list[Tensor]:
    """What each gives for these rows, and the gradient of each with respect to them."""
    return [
        *with_gradients(_norm, grad, x, weight)[:2],
        *with_gradients(_norm_of_sum, grad, x, other, weight)[:3],
        *with_gradients(swiglu, grad, torch.cat((x, other), -1)),
        *with_gradients(_logprobs, grad, x),
    ]
