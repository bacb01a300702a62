"""Noise that belongs to a completion's key, a position and a token: no generator, so nothing to lose or to share.

The token with the largest log-probability plus Gumbel noise is a draw from the distribution (Gumbel 1954; Maddison,
Tarlow and Minka 2014). Here the noise is a hash, so that a token's is the same in whatever batch, at whatever index and
time it is asked for, and whatever was filtered before: it is never moved to a rank.

Whole numbers are mixed with splitmix64's finaliser (Steele, Lea and Flood 2014) in int64, which wraps, and whose bits
are those of uint64; only shifts to the right need a mask. The same on any device, up to the last bit of log.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rlcore.errors import StepError

BITS = 52
"""Of a uniform number. With 24, no noise is above 17.4, and what is less probable than that is never drawn."""
ELEMENTS_AT_ONCE = 1 << 16
"""Mixed together on a CPU: half a megabyte, which stays in a core's cache."""
GPU_ELEMENTS_AT_ONCE = 1 << 24
"""Mixed together on a GPU, where each piece costs a dozen launches: 128 MB, all rows of most batches."""


def signed(number: int) -> int:
    """The int64 of the same 64 bits, such as of a key."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


GOLDEN = signed(0x9E3779B97F4A7C15)
_FACTORS = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)
_SHIFTS = 30, 27, 31
_ONE = 0x3FF << BITS
"""The bits of 1.0, to which a fraction is added."""


def _shifted(x: Tensor, count: int) -> Tensor:
    """x >> count with zeros from the left."""
    return (x >> count).bitwise_and_((1 << (64 - count)) - 1)


def mixed_(x: Tensor) -> Tensor:
    """splitmix64's finaliser, in place: int64 of any shape, every bit of the result of every bit of x."""
    for shift, factor in zip(_SHIFTS, _FACTORS, strict=False):
        x.bitwise_xor_(_shifted(x, shift)).mul_(factor)
    return x.bitwise_xor_(_shifted(x, _SHIFTS[-1]))


def uniforms(bits: Tensor) -> Tensor:
    """The upper 52 bits n of each int64 -> (n + 1/2) / 2^52 in fp64, exact: never 0, never 1."""
    fractions = _shifted(bits, 64 - BITS).bitwise_or_(_ONE).view(torch.float64)
    return fractions.sub_(1.0 - 0.5 ** (BITS + 1))


def gumbels_(uniform: Tensor) -> Tensor:
    """-log(-log(u)) of numbers in (0, 1), in place."""
    return uniform.log_().neg_().log_().neg_()


def states(keys: Tensor, positions: Tensor) -> Tensor:
    """What the noise of each position begins with: int64 of any shapes that go together -> int64.

    Positions count a completion's tokens from 0. A key begins a splitmix64 sequence of positions, and each number of it
    one of tokens.
    """
    return mixed_((positions + 1) * GOLDEN + keys)


@dataclass(frozen=True, slots=True)
class GumbelNoise:
    """Noise for each token of a vocabulary."""

    ids: Tensor
    """int64 [vocabulary]: what each token's number adds to a state."""

    @classmethod
    def of(cls, vocab_size: int, device: torch.device) -> "GumbelNoise":
        """A token's noise does not depend on how many others there are."""
        return cls(torch.arange(1, vocab_size + 1, device=device) * GOLDEN)

    def __call__(self, states: Tensor) -> Tensor:
        """States int64 [rows] -> fp64 [rows, vocabulary]; pieces have the bits of the whole."""
        elements = ELEMENTS_AT_ONCE if self.ids.is_cpu else GPU_ELEMENTS_AT_ONCE
        rows = max(1, elements // len(self.ids))
        parts = [gumbels_(uniforms(mixed_(part.unsqueeze(1) + self.ids))) for part in torch.split(states, rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


KNOWN = (
    (0x5EED, 310, 41570, 18.500252284603345),
    (0x5EED, 912, 51550, 18.322933128170035),
    (-5, 7, 99, -0.1260209392112426),
)
"""Key, position, token, and their noise. Two are beyond 17.4, the most that 24 bits of a uniform number give."""
KNOWN_ROUNDING = 1e-12
"""Of a logarithm, relative."""


def check_known() -> None:
    """Check the noise of some keys, positions and tokens against constants; raises StepError."""
    for key, position, token, expected in KNOWN:
        noise = GumbelNoise(torch.tensor([signed((token + 1) * GOLDEN)]))
        found = float(noise(states(torch.tensor([key]), torch.tensor([position]))))
        if not math.isclose(found, expected, rel_tol=KNOWN_ROUNDING):
            raise StepError(
                f"the noise of key {key}, position {position} and token {token} is {found!r}",
                legal=f"{expected!r}: {BITS} bits of a uniform number, mixed by splitmix64",
                remedy="restore rlcore.samplers.gumbel: every draw of every earlier run depends on it",
                phases=("rollout",),
            )
