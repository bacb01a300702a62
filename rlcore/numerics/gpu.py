"""Operations of level invariant on a GPU: Triton kernels that compute each row in one order of additions.

linear       tiles of rows and columns; K ascends in one accumulator: no split of K, no atomics
attention    tiles of queries, blocks of keys ascending from the first: decoding runs the loop of the full pass
row by row   RMSNorm, SwiGLU, log-probabilities, sums: a program reads its row in blocks of one width
gradients    of weights: sums over the rows of a fixed microbatch, in an order that its number of rows decides

Only tiles of products and attention are chosen, by the GPU's model and the shape. No kernel is searched for at run
time. Two tiles differ in how many independent sums they hold, not in the order of any; the probe compares them.
TRITON_INTERPRET=1 runs all of it on a CPU, without bf16.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from math import e, log2, sqrt
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from rlcore.errors import LevelError
from rlcore.numerics.level import active
from rlcore.numerics.row_sum import row_sum

VERSION = 1
"""Of the order of additions: a change that moves a bit counts it up."""
LOWEST = (8, 0)
"""Compute capability: bf16 on tensor cores, and copies to shared memory beside them."""
COPIES_BLOCKS = (9, 0)
"""From here on a unit of the GPU copies blocks of a matrix (TMA); before, addresses are worked out."""
ROWS_AT_ONCE = 32
"""Rows that one program adds up for the gradient of a norm's weight."""
COLUMNS_AT_ONCE = 4096
"""Of a row of logits, read together."""
LOG2_E = log2(e)
BLOCK_ALIGNMENT = 16
"""Bytes: rows of a matrix begin at multiples, which the copy unit of a GPU wants."""


class Tile(NamedTuple):
    """Rows, columns and depth of a block of a product; warps and stages of its pipeline."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


class Machine(NamedTuple):
    """Facts of a GPU that choose a tile."""

    capability: tuple[int, int]
    num_sms: int

    def products(self, dtype: torch.dtype) -> tuple[Tile, ...]:
        """Return the tiles of products, from large to small. 8.6, 8.9 and 12.x have 99 KiB of shared memory."""
        if dtype.itemsize >= 4:
            return (Tile(64, 64, 16, 8, 2),)
        is_small = self.capability in ((8, 6), (8, 9)) or self.capability[0] >= 12
        largest = Tile(128, 128, 64, 8, 2) if is_small else Tile(128, 256, 64, 8, 3)
        return largest, Tile(64, 128, 64, 4, 3), Tile(64, 32, 64, 4, 6)

    def attention(self, dtype: torch.dtype) -> tuple[Tile, ...]:
        """Return the tiles of attention: queries, keys. All have the same keys, whose blocks decide the bits."""
        if dtype.itemsize >= 4:
            return (Tile(16, 32, 0, 8, 1),)
        return Tile(128, 64, 0, 8, 2), Tile(64, 64, 0, 4, 2)


@cache
def machine(device: torch.device) -> Machine:
    """Return the facts of a device. Raises LevelError for a GPU older than `LOWEST`."""
    if device.type != "cuda":
        return Machine((9, 0), 4)  # interpreted
    found = torch.cuda.get_device_properties(device)
    capability = found.major, found.minor
    if capability < LOWEST:
        raise LevelError(
            f"level invariant on {found.name}, of compute capability {found.major}.{found.minor}",
            legal="8.0 or higher",
            remedy="--level deterministic",
        )
    return Machine(capability, found.multi_processor_count)


def _allowed(tiles: Sequence[Tile]) -> Sequence[Tile]:
    """Return the tiles that the strategy takes: all, or the smallest alone."""
    strategy = active()
    return tiles[-1:] if strategy is not None and strategy.is_tiled else tiles


def kernels() -> str:
    """Describe the kernels, for a run's fingerprint."""
    return f"rlcore.numerics.gpu {VERSION}, triton {triton.__version__}"


def _on(x: Tensor) -> AbstractContextManager[object]:
    """Make a tensor's GPU the one that Triton launches on."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _precision(x: Tensor) -> str:
    """Return how products of fp32 numbers are computed: in fp32, not in TF32."""
    return "ieee" if x.dtype == torch.float32 else "tf32"  # the latter says nothing of narrower types


# ------------------------------------------------------------------------------------------------------------ products


@triton.jit  # type: ignore[untyped-decorator]
def read_block(x, row, column, num_rows, num_columns, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """A block of a matrix, zeros beyond its ends: of a descriptor, or by addresses where `stride` is one of rows."""
    if stride is None:
        found = x.load([row, column])
    else:
        i, j = row + tl.arange(0, ROWS), column + tl.arange(0, COLUMNS)
        is_there = (i < num_rows)[:, None] & (j < num_columns)[None, :]
        found = tl.load(x + i.to(tl.int64)[:, None] * stride + j[None, :], is_there, 0.0)
    return found


def product_tiles(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    x,
    w,
    y,
    x_stride,
    w_stride,
    y_stride,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    IS_X_TURNED: tl.constexpr,
    IS_W_TURNED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """y [M, N] = x [M, K] @ w [N, K].T, where a turned one lies in memory as its transpose.

    Programs stay and take tile after tile; eight tiles of rows share the columns that they have read.
    """
    num_rows, num_columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), num_rows * num_columns, tl.num_programs(0)):
        first = tile // (8 * num_columns) * 8
        height = min(num_rows - first, 8)
        inner = tile % (8 * num_columns)
        row = (first + inner % height) * BM
        column = inner // height * BN
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            if IS_X_TURNED:
                a = read_block(x, k, row, K, M, x_stride, BK, BM).T
            else:
                a = read_block(x, row, k, M, K, x_stride, BM, BK)
            if IS_W_TURNED:
                b = read_block(w, k, column, K, N, w_stride, BK, BN)
            else:
                b = read_block(w, column, k, N, K, w_stride, BN, BK).T
            total = tl.dot(a, b, total, input_precision=PRECISION)
        if y_stride is None:
            y.store([row, column], total.to(y.dtype))
        else:
            i, j = row + tl.arange(0, BM), column + tl.arange(0, BN)
            out = y + i.to(tl.int64)[:, None] * y_stride + j[None, :]
            tl.store(out, total.to(y.dtype.element_ty), (i < M)[:, None] & (j < N)[None, :])


by_blocks = triton.jit(do_not_specialize=["M", "K"])(product_tiles)
"""Numbers of rows compile no variants: none of them is an address."""
by_addresses = triton.jit(product_tiles)


def _aligned(x: Tensor) -> Tensor:
    """Return a matrix whose rows begin at multiples of 16 bytes and lie in memory as they are read."""
    wanted = BLOCK_ALIGNMENT // x.element_size()
    is_dense = x.stride(1) == 1 and x.stride(0) >= x.shape[1]
    if is_dense and not x.stride(0) % wanted and not x.data_ptr() % BLOCK_ALIGNMENT:
        return x
    wide = x.new_empty(x.shape[0], x.shape[1] + -x.shape[1] % wanted)[:, : x.shape[1]]
    return wide.copy_(x)


def product(
    x: Tensor, w: Tensor, *, is_x_turned: bool = False, is_w_turned: bool = False, tile: Tile | None = None
) -> Tensor:
    """x [M, K] @ w [N, K].T -> [M, N]; a turned one is given as its transpose. Without `tile`, the best for the shape.

    That is the largest with tiles for three quarters of the GPU, and no more rows than there are.
    """
    rows, depth = (x.shape[1], x.shape[0]) if is_x_turned else x.shape
    columns = w.shape[1] if is_w_turned else w.shape[0]
    y = _aligned(x.new_empty(rows, columns))
    if not y.numel() or not depth:
        return y.zero_()
    found = machine(x.device)
    tiles = (tile,) if tile else _allowed(found.products(x.dtype))

    def num_tiles(each: Tile) -> int:
        return int(triton.cdiv(rows, each.rows) * triton.cdiv(columns, each.columns))

    fitting = (t for t in tiles if t.rows <= rows and 4 * num_tiles(t) >= 3 * found.num_sms)
    by = next(fitting, tiles[-1])
    x, w = _aligned(x), _aligned(w)
    blocks = (
        (x, (by.depth, by.rows) if is_x_turned else (by.rows, by.depth)),
        (w, (by.depth, by.columns) if is_w_turned else (by.columns, by.depth)),
        (y, (by.rows, by.columns)),
    )
    kernel = by_blocks if found.capability >= COPIES_BLOCKS else by_addresses
    if kernel is by_blocks:
        given = [*(TensorDescriptor(t, [*t.shape], [*t.stride()], [*block]) for t, block in blocks), None, None, None]
    else:
        given = [x, w, y, *(t.stride(0) for t in (x, w, y))]
    with _on(x):
        kernel[(min(num_tiles(by), found.num_sms * max(1, 16384 // (by.rows * by.columns))),)](
            *given,
            rows,
            columns,
            depth,
            BM=by.rows,
            BN=by.columns,
            BK=by.depth,
            IS_X_TURNED=is_x_turned,
            IS_W_TURNED=is_w_turned,
            PRECISION=_precision(x),
            num_warps=by.num_warps,
            num_stages=by.num_stages,
        )
    return y


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (x, weight), (needs_x, needs_weight) = ctx.saved_tensors, ctx.needs_input_grad
        dx = product(grad, weight, is_w_turned=True) if needs_x else None
        dw = product(grad, x, is_x_turned=True, is_w_turned=True) if needs_weight else None
        return dx, dw


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, inputs] @ weight [outputs, inputs].T -> [rows, outputs]; differentiable."""
    return _Linear.apply(x, weight)  # type: ignore[no-untyped-call,no-any-return]


# ----------------------------------------------------------------------------------------------------------- attention


@triton.jit  # type: ignore[untyped-decorator]
def group_rows(tile, kv_head, GROUP: tl.constexpr, BM: tl.constexpr):  # type: ignore[no-untyped-def]
    """(query, head) of each row of a tile: the heads that share a kv head stand side by side."""
    row = tile * BM + tl.arange(0, BM)
    return row // GROUP, kv_head * GROUP + row % GROUP


@triton.jit  # type: ignore[untyped-decorator]
def addresses(x, batch, head, row, strides, D: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Addresses [rows, D] of rows of one sample; `head` is one for all rows or one for each.

    Strides are those of samples, heads and rows.
    """
    first = x + batch * strides[0] + head.to(tl.int64) * strides[1] + row.to(tl.int64) * strides[2]
    return first[:, None] + tl.arange(0, D)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def probabilities(scores, scale, top, BM: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    """2^(score * scale - top), in one fused step wherever it is compiled."""
    return tl.exp2(tl.fma(scores, tl.full((BM, BN), 1.0, tl.float32) * scale, -top))


@triton.jit(do_not_specialize=["num_queries", "num_keys"])  # type: ignore[untyped-decorator]
def attend_tiles(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    q,
    k,
    v,
    y,
    tops,
    starts,
    num_queries,
    num_keys,
    scale,
    q_strides,
    k_strides,
    v_strides,
    y_strides,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attention of one tile of queries, of the heads that share a kv head; the longest tiles first.

    A block none of whose keys a query sees leaves its sums as they are: how far a tile goes does not matter.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, kv_head = (tl.program_id(1) // KV_HEADS).to(tl.int64), tl.program_id(1) % KV_HEADS
    start = 0
    if starts is not None:
        start = tl.load(starts + batch).to(tl.int32)
    i, head = group_rows(tile, kv_head, GROUP, BM)
    is_real = i < num_queries
    columns = (tl.arange(0, D) < WIDTH)[None, :]
    block = tl.load(addresses(q, batch, head, i, q_strides, D), is_real[:, None] & columns, 0.0)
    last = start + tl.minimum(i, num_queries - 1)
    top = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for n in range(0, start + tl.minimum((tile * BM + BM - 1) // GROUP, num_queries - 1) + 1, BN):
        j = n + tl.arange(0, BN)
        is_there = (j < num_keys)[:, None] & columns
        key = tl.load(addresses(k, batch, kv_head, j, k_strides, D), is_there, 0.0)
        value = tl.load(addresses(v, batch, kv_head, j, v_strides, D), is_there, 0.0)
        scores = tl.dot(block, key.T, input_precision=PRECISION)
        scores = tl.where(j[None, :] <= last[:, None], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * scale)
        portions = probabilities(scores, scale, higher[:, None], BM, BN)
        fade = tl.exp2(top - higher)
        weight = tl.fma(weight, fade, tl.sum(portions, 1))
        total = tl.dot(portions.to(value.dtype), value, total * fade[:, None], input_precision=PRECISION)
        top = higher
    out = addresses(y, batch, head, i, y_strides, D)
    tl.store(out, (total / weight[:, None]).to(y.dtype.element_ty), is_real[:, None] & columns)
    tl.store(tops + (batch * KV_HEADS * GROUP + head) * num_queries + i, top + tl.log2(weight), is_real)


@triton.jit(do_not_specialize=["length"])  # type: ignore[untyped-decorator]
def attend_gradient_of_queries(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    q,
    k,
    v,
    y,
    grad,
    dq,
    tops,
    deltas,
    length,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradient of a tile of queries of a full pass, and of each the sum that keys need; keys ascend.

    All are contiguous [batch, length, heads, width] and [batch, length, kv_heads, width].
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, kv_head = (tl.program_id(1) // KV_HEADS).to(tl.int64), tl.program_id(1) % KV_HEADS
    heads: tl.constexpr = KV_HEADS * GROUP
    i, head = group_rows(tile, kv_head, GROUP, BM)
    is_real = i < length
    columns = (tl.arange(0, D) < WIDTH)[None, :]
    own = addresses(0, batch, head, i, (length * heads * WIDTH, WIDTH, heads * WIDTH), D)
    block = tl.load(q + own, is_real[:, None] & columns, 0.0)
    slope = tl.load(grad + own, is_real[:, None] & columns, 0.0)
    result = tl.load(y + own, is_real[:, None] & columns, 0.0)
    delta = tl.sum(slope.to(tl.float32) * result.to(tl.float32), 1)
    of_row = (batch * heads + head) * length + i
    tl.store(deltas + of_row, delta, is_real)
    top = tl.load(tops + of_row, is_real, 0.0)
    total = tl.zeros((BM, D), tl.float32)
    for n in range(0, tl.minimum((tile * BM + BM - 1) // GROUP, length - 1) + 1, BN):
        j = n + tl.arange(0, BN)
        at = addresses(0, batch, kv_head, j, (length * KV_HEADS * WIDTH, WIDTH, KV_HEADS * WIDTH), D)
        is_there = (j < length)[:, None] & columns
        key, value = tl.load(k + at, is_there, 0.0), tl.load(v + at, is_there, 0.0)
        scores = tl.dot(block, key.T, input_precision=PRECISION)
        portions = probabilities(scores, scale, top[:, None], BM, BN)
        portions = tl.where(j[None, :] <= i[:, None], portions, 0.0)
        steep = portions * (tl.dot(slope, value.T, input_precision=PRECISION) - delta[:, None])
        total = tl.dot(steep.to(key.dtype), key, total, input_precision=PRECISION)
    tl.store(dq + own, (total * (scale * 0.6931471805599453)).to(dq.dtype.element_ty), is_real[:, None] & columns)


@triton.jit(do_not_specialize=["length"])  # type: ignore[untyped-decorator]
def attend_gradient_of_keys(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    q,
    k,
    v,
    grad,
    dk,
    dv,
    tops,
    deltas,
    length,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The gradients of a block of keys and values of a full pass; queries and the heads of the group ascend."""
    batch, kv_head = (tl.program_id(1) // KV_HEADS).to(tl.int64), tl.program_id(1) % KV_HEADS
    heads: tl.constexpr = KV_HEADS * GROUP
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    columns = (tl.arange(0, D) < WIDTH)[None, :]
    own = addresses(0, batch, kv_head, j, (length * KV_HEADS * WIDTH, WIDTH, KV_HEADS * WIDTH), D)
    is_there = (j < length)[:, None] & columns
    key, value = tl.load(k + own, is_there, 0.0), tl.load(v + own, is_there, 0.0)
    of_key = tl.zeros((BN, D), tl.float32)
    of_value = tl.zeros((BN, D), tl.float32)
    for tile in range(tl.program_id(0) * BN * GROUP // BM, tl.cdiv(length * GROUP, BM)):
        i, head = group_rows(tile, kv_head, GROUP, BM)
        is_real = i < length
        at = addresses(0, batch, head, i, (length * heads * WIDTH, WIDTH, heads * WIDTH), D)
        block = tl.load(q + at, is_real[:, None] & columns, 0.0)
        slope = tl.load(grad + at, is_real[:, None] & columns, 0.0)
        of_row = (batch * heads + head) * length + i
        top, delta = tl.load(tops + of_row, is_real, 0.0), tl.load(deltas + of_row, is_real, 0.0)
        scores = tl.dot(key, block.T, input_precision=PRECISION)
        portions = probabilities(scores, scale, top[None, :], BN, BM)
        portions = tl.where((j[:, None] <= i[None, :]) & is_real[None, :], portions, 0.0)
        of_value = tl.dot(portions.to(value.dtype), slope, of_value, input_precision=PRECISION)
        steep = portions * (tl.dot(value, slope.T, input_precision=PRECISION) - delta[None, :])
        of_key = tl.dot(steep.to(key.dtype), block, of_key, input_precision=PRECISION)
    tl.store(dk + own, (of_key * (scale * 0.6931471805599453)).to(dk.dtype.element_ty), is_there)
    tl.store(dv + own, of_value.to(dv.dtype.element_ty), is_there)


def _attend(q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """(the result, log2 of the sum of each row's exponentials [batch * heads, queries])."""
    (batch, heads, num_queries, width), kv_heads = q.shape, k.shape[1]
    y = q.new_empty(batch, num_queries, heads, width).transpose(1, 2)  # heads are put together without a copy
    tops = torch.empty(batch * heads, num_queries, dtype=torch.float32, device=q.device)
    group = heads // kv_heads
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    tiles = _allowed(machine(q.device).attention(q.dtype))
    by = next((tile for tile in tiles if tile.rows <= num_queries * group), tiles[-1])
    with _on(q):
        attend_tiles[(triton.cdiv(num_queries * group, by.rows), batch * kv_heads)](
            *(q, k, v, y, tops, starts, num_queries, k.shape[2], LOG2_E / sqrt(width)),
            *(x.stride()[:3] for x in (q, k, v, y)),
            **_of_heads(q, kv_heads, by),
        )
    return y, tops


def _of_heads(q: Tensor, kv_heads: int, by: Tile) -> dict[str, Any]:
    """Constants of attention's kernels: q [batch, heads, queries, width]."""
    width = q.shape[3]
    return {
        "KV_HEADS": kv_heads,
        "GROUP": q.shape[1] // kv_heads,
        "WIDTH": width,
        "D": max(16, triton.next_power_of_2(width)),
        "BM": by.rows,
        "BN": by.columns,
        "PRECISION": _precision(q),
        "num_warps": by.num_warps,
        "num_stages": by.num_stages,
    }


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y, tops = _attend(q, k, v, None)
        ctx.save_for_backward(q, k, v, y, tops)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        given, kv_heads = ctx.saved_tensors, ctx.saved_tensors[1].shape[1]
        q, k, v, y = (x.transpose(1, 2).contiguous() for x in given[:4])
        grad, tops = grad.transpose(1, 2).contiguous(), given[4]
        dq, dk, dv, deltas = (torch.empty_like(x) for x in (q, k, v, tops))
        (batch, length, heads, width), by = q.shape, machine(q.device).attention(q.dtype)[-1]
        scale, constants = LOG2_E / sqrt(width), _of_heads(given[0], kv_heads, by)
        num_tiles = triton.cdiv(length * heads // kv_heads, by.rows), triton.cdiv(length, by.columns)
        with _on(q):
            attend_gradient_of_queries[(num_tiles[0], batch * kv_heads)](
                q, k, v, y, grad, dq, tops, deltas, length, scale, **constants
            )
            attend_gradient_of_keys[(num_tiles[1], batch * kv_heads)](
                q, k, v, grad, dk, dv, tops, deltas, length, scale, **constants
            )
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor | None) -> Tensor:
    """As `rlcore.numerics.attention.attention`; starts [batch] are the positions of first queries, None a full pass.

    Only a full pass has a gradient.
    """
    if starts is not None:
        return _attend(q, k, v, starts)[0]
    return _Attention.apply(q, k, v)  # type: ignore[no-untyped-call,no-any-return]


# ---------------------------------------------------------------------------------------------------------- row by row


@triton.jit  # type: ignore[untyped-decorator]
def norm_rows(x, w, y, inverses, width, num_weights, eps, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """One row divided by its root mean square, and weighted; row r has weight r % num_weights."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    value = tl.load(x + row * width + at, at < width, 0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    tl.store(inverses + row, inverse)
    weight = tl.load(w + row % num_weights * width + at, at < width, 0.0).to(tl.float32)
    normal = (value * inverse).to(y.dtype.element_ty).to(tl.float32)
    tl.store(y + row * width + at, (normal * weight).to(y.dtype.element_ty), at < width)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def norm_gradients(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    x, w, grad, inverses, dx, dw, num_rows, width, num_weights, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Gradients of ROWS rows that have one weight, and the sum of their gradients of it."""
    number, at = tl.program_id(1), tl.arange(0, BLOCK)
    weight = tl.load(w + number * width + at, at < width, 0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for each in range(ROWS):
        row = (tl.program_id(0).to(tl.int64) * ROWS + each) * num_weights + number
        is_there = at < tl.where(row < num_rows, width, 0)
        inverse = tl.load(inverses + row, row < num_rows, 0.0)
        normal = tl.load(x + row * width + at, is_there, 0.0).to(tl.float32) * inverse
        slope = tl.load(grad + row * width + at, is_there, 0.0).to(tl.float32)
        total += slope * normal
        slope = slope * weight
        along = tl.sum(slope * normal, 0) / width
        tl.store(dx + row * width + at, ((slope - normal * along) * inverse).to(dx.dtype.element_ty), is_there)
    tl.store(dw + (tl.program_id(0) * num_weights + number) * width + at, total, at < width)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        y, width = torch.empty_like(x), x.shape[-1]
        inverses = torch.empty(x.numel() // width, dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, inverses)
        ctx.given = width, weight.numel() // width, eps
        with _on(x):
            norm_rows[(len(inverses),)](x, weight, y, inverses, *ctx.given, **_row(width))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (x, weight, inverses), (width, num_weights, _) = ctx.saved_tensors, ctx.given
        grad, dx = grad.contiguous(), torch.empty_like(x)
        num_parts = triton.cdiv(len(inverses), ROWS_AT_ONCE * num_weights)
        dw = torch.empty(num_parts, *weight.shape, dtype=torch.float32, device=x.device)
        with _on(x):
            norm_gradients[(num_parts, num_weights)](
                x, weight, grad, inverses, dx, dw, len(inverses), *ctx.given, ROWS=ROWS_AT_ONCE, **_row(width)
            )
        return dx, row_sum(dw).to(weight.dtype), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `rlcore.numerics.norms.rms_norm`."""
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call,no-any-return]


def _row(width: int) -> dict[str, int]:
    """Return the block that holds a row of this width, and its warps."""
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": max(1, min(16, block // 256))}


@triton.jit  # type: ignore[untyped-decorator]
def swiglu_rows(x, grad, y, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """y [rows, width] of x [rows, gates then ups]; with `grad` [rows, width], y is the gradient of x."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_there = at < width
    gate = tl.load(x + row * 2 * width + at, is_there, 0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + at, is_there, 0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-gate))
    if grad is None:
        tl.store(y + row * width + at, (gate * share * up).to(y.dtype.element_ty), is_there)
    else:
        slope = tl.load(grad + row * width + at, is_there, 0.0).to(tl.float32)
        of_gate = slope * up * share * (1.0 + gate * (1.0 - share))
        tl.store(y + row * 2 * width + at, of_gate.to(y.dtype.element_ty), is_there)
        tl.store(y + row * 2 * width + width + at, (slope * gate * share).to(y.dtype.element_ty), is_there)


def swiglu(gate_up: Tensor, grad: Tensor | None = None) -> Tensor:
    """[rows, 2 * width] -> [rows, width]; with the gradient of that, the gradient of `gate_up`."""
    gate_up, width = gate_up.contiguous(), gate_up.shape[1] // 2
    y = gate_up.new_empty(len(gate_up), width) if grad is None else torch.empty_like(gate_up)
    with _on(y):
        swiglu_rows[(len(y), triton.cdiv(width, 1024))](
            gate_up, grad if grad is None else grad.contiguous(), y, width, BLOCK=1024, num_warps=4
        )
    return y


@triton.jit  # type: ignore[untyped-decorator]
def vocabulary_rows(logits, sums, entropies, vocab_size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Log of the sum of exponentials of one row of logits, and where asked for its entropy in nats."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    logits += row * vocab_size
    top = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    for n in range(0, vocab_size, BLOCK):
        value = tl.load(logits + n + at, n + at < vocab_size, float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(value, 0))
        total = tl.fma(total, tl.exp(top - higher), tl.sum(tl.exp(value - higher), 0))
        top = higher
    found = top + tl.log(total)
    tl.store(sums + row + tl.arange(0, 1), found)
    if entropies is not None:
        mean = tl.zeros((1,), tl.float32)
        for n in range(0, vocab_size, BLOCK):
            value = tl.load(logits + n + at, n + at < vocab_size, float("-inf")).to(tl.float32) - found
            mean += tl.sum(tl.exp(value) * tl.where(value > float("-inf"), value, 0.0), 0)
        tl.store(entropies + row + tl.arange(0, 1), -mean)


@triton.jit  # type: ignore[untyped-decorator]
def vocabulary_gradients(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    logits, tokens, sums, entropies, of_token, of_entropy, out, vocab_size, BLOCK: tl.constexpr
):
    """Gradients of logits, from those of the token's log-probability and of the entropy."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * vocab_size + at, at < vocab_size, float("-inf")).to(tl.float32)
    value = value - tl.load(sums + row)
    share, slope = tl.exp(value), tl.load(of_token + row)
    found = tl.where(at == tl.load(tokens + row), slope, 0.0) - slope * share
    if of_entropy is not None:
        inner = tl.where(value > float("-inf"), value, 0.0) + tl.load(entropies + row)
        found -= tl.load(of_entropy + row) * share * inner
    tl.store(out + row * vocab_size + at, found.to(out.dtype.element_ty), at < vocab_size)


def log_sums(logits: Tensor, has_entropy: bool = False) -> tuple[Tensor, Tensor | None]:
    """Contiguous logits [..., vocabulary] -> (log of their sum of exponentials, entropy) fp32 [...]."""
    sums = torch.empty(logits.shape[:-1], dtype=torch.float32, device=logits.device)
    entropies = torch.empty_like(sums) if has_entropy else None
    if sums.numel():
        with _on(logits):
            vocabulary_rows[(sums.numel(),)](
                logits, sums, entropies, logits.shape[-1], BLOCK=COLUMNS_AT_ONCE, num_warps=8
            )
    return sums, entropies


class _LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        logits = logits.contiguous()
        y = logits.float() - log_sums(logits)[0].unsqueeze(-1)
        ctx.save_for_backward(y)
        ctx.dtype = logits.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad.sub(y.exp().mul_(last_sum(grad).unsqueeze(-1))).to(ctx.dtype)


def log_softmax(logits: Tensor) -> Tensor:
    """As `rlcore.numerics.log_softmax.log_softmax`."""
    return _LogSoftmax.apply(logits)  # type: ignore[no-untyped-call,no-any-return]


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, has_entropy: bool) -> tuple[Tensor, Tensor | None]:
        logits, tokens = logits.contiguous(), tokens.contiguous()
        sums, entropies = log_sums(logits, has_entropy)
        ctx.save_for_backward(logits, tokens, sums, entropies)
        return logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).float().sub_(sums), entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_token: Tensor, of_entropy: Tensor | None) -> tuple[Tensor, None, None]:
        logits, tokens, sums, entropies = ctx.saved_tensors
        out, slope = torch.empty_like(logits), None if entropies is None else of_entropy.contiguous()  # type: ignore[union-attr]
        num_blocks = triton.cdiv(logits.shape[-1], COLUMNS_AT_ONCE)
        with _on(logits):
            vocabulary_gradients[(sums.numel(), num_blocks)](
                *(logits, tokens, sums, entropies, of_token.contiguous(), slope, out, logits.shape[-1]),
                BLOCK=COLUMNS_AT_ONCE,
                num_warps=8,
            )
        return out, None, None


def token_logprobs(logits: Tensor, tokens: Tensor, *, has_entropy: bool = False) -> tuple[Tensor, Tensor | None]:
    """(log-probabilities of tokens, entropies or None) fp32 [...] of logits [..., vocabulary], tokens int64 [...]."""
    return _TokenLogprobs.apply(logits, tokens, has_entropy)  # type: ignore[no-untyped-call,no-any-return]


@triton.jit  # type: ignore[untyped-decorator]
def sum_rows(x, y, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sum of one row."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), x.dtype.element_ty)
    for n in range(0, width, BLOCK):
        total += tl.load(x + row * width + n + at, n + at < width, 0.0)
    tl.store(y + row, tl.sum(total, 0))


class _LastSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x, y = x.contiguous(), x.new_empty(x.shape[:-1])
        ctx.shape = x.shape
        if y.numel():
            with _on(x):
                sum_rows[(y.numel(),)](x, y, x.shape[-1], BLOCK=1024, num_warps=4)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.unsqueeze(-1).expand(ctx.shape)


def last_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension: fp32 or fp64 [..., width] -> [...]."""
    return _LastSum.apply(x)  # type: ignore[no-untyped-call,no-any-return]


@triton.jit  # type: ignore[untyped-decorator]
def copy_rows(source, places, target, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Row r of the source to row places[r] of the target."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    value = tl.load(source + row * width + at, at < width)
    tl.store(target + tl.load(places + row) * width + at, value, at < width)


def write_rows(target: Tensor, places: Tensor, source: Tensor) -> None:
    """target[places] = source, of [rows, width], by distinct places, without torch's sort; the target is contiguous."""
    source = source.contiguous()  # rows of one head of several are a view
    with _on(source):
        copy_rows[(len(source),)](source, places, target, source.shape[1], **_row(source.shape[1]))


def products_by_tile(x: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Return the same product by each tile that a strategy may choose, by name."""
    tiles = _allowed(machine(x.device).products(x.dtype))
    return {f"tiles of {tile.rows} by {tile.columns}": product(x, weight, tile=tile) for tile in tiles}
