"""The cheapest recipe: the fastest kernels there are, at row counts whose kernels agree with each other.

A product of one row takes another path through oneDNN than one of sixteen, one of up to twelve through MKL where it is
not strict, and so does attention of a single query; multiples of sixteen rows take one path whatever their number. Sums
over keys are cut into blocks: over up to some 190 keys the cuts do not depend on how many follow, beyond it they do
unless whole blocks of torch's attention are filled, which costs short sequences as much as long ones. That is seen, not
promised: the probe looks.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from rlcore.numerics.attention import full_pass, heads_as_queries, plain_attention
from rlcore.numerics.linear import padded
from rlcore.numerics.product import product


@dataclass(frozen=True, slots=True)
class Padding:
    """Zero rows up to a multiple of `rows`, queries of `queries`, keys of `keys`."""

    rows: int = 16
    queries: int = 4
    keys: int = 16
    name: str = "pad16"

    def linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """As `Recipe.linear`."""
        y = product(padded(x, self.rows, 0), weight)
        return y if y.shape[0] == x.shape[0] else y[: x.shape[0]]

    def attention(self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
        """As `Recipe.attention`; keys are padded to a multiple with keys that no query sees."""
        num_queries = q.shape[2]
        k, v = padded(k, self.keys, 2), padded(v, self.keys, 2)
        if seen is None and self.keys > self.rows:
            seen = full_pass(q)  # then queries need not be padded as far as keys
        if seen is None:
            y = plain_attention(padded(q, self.queries, 2), k, v, None)
            return y if y.shape[2] == num_queries else y[:, :, :num_queries]
        seen = padded(seen, self.keys, 3)
        if num_queries > 1:
            seen = F.pad(seen, (0, 0, 0, -num_queries % self.queries), value=True)
            return plain_attention(padded(q, self.queries, 2), k, v, seen)[:, :, :num_queries]
        rows = heads_as_queries(q, k.shape[1])
        y = plain_attention(padded(rows, self.queries, 2), k, v, seen)
        return y[:, :, : rows.shape[2]].reshape(q.shape)
