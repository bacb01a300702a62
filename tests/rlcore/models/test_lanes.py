"""What defines the bits of a gradient: a lane's members and its padded length, and that it is added as a whole.

Each is shown by taking it away.
"""

import pytest
import torch
from torch import Tensor

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.level import following
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.numerics.probe import STRATEGIES
from tests.support.canonical_sum import tree_sum

CONFIG = DecoderConfig("llama", 29, 32, 2, 4, 2, 8, 44, max_length=64)
TOKENS = torch.randint(3, 29, (8, 30), generator=torch.Generator().manual_seed(6))
LANES = tuple(TOKENS[first : first + 2] for first in range(0, 8, 2))


def gradients(tokens: Tensor, decoder: Decoder, *, padding: int = 0) -> list[Tensor]:
    """Of a lane, each padded by so many tokens that no loss is taken of."""
    padded = torch.nn.functional.pad(tokens, (0, padding))
    with following(STRATEGIES[0]):
        logits = decoder(padded)[:, : tokens.shape[1] - 1]
        return list(torch.autograd.grad(token_logprobs(logits, tokens[:, 1:]).sum(), list(decoder.parameters())))


def added(parts: list[list[Tensor]]) -> list[Tensor]:
    """Lane gradients by the tree."""
    sums = [tree_sum(lanes) for lanes in zip(*parts, strict=True)]
    return [total for total in sums if total is not None]


def num_different(a: list[Tensor], b: list[Tensor]) -> int:
    return sum(not torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(CONFIG).initialise(5)


def test_lanes_are_part_of_what_a_run_is(decoder: Decoder) -> None:
    """One lane for all, other members, another padded length: at least one of them has other bits on any machine."""
    others = (
        gradients(TOKENS, decoder),
        added([gradients(TOKENS[lane::4], decoder) for lane in range(4)]),
        added([gradients(lane, decoder, padding=27) for lane in LANES]),
    )
    own = added([gradients(lane, decoder) for lane in LANES])
    assert any(num_different(own, other) for other in others)


def test_tied_weights_are_added_within_their_lane(decoder: Decoder) -> None:
    """As autograd does it; the two uses added by trees of their own give other bits."""
    untied = Decoder(DecoderConfig("llama", 29, 32, 2, 4, 2, 8, 44, max_length=64, is_tied=False))
    with torch.no_grad():
        for name, parameter in untied.named_parameters():
            parameter.copy_(decoder.embedding if name == "head" else decoder.get_parameter(name))
    names = [name for name, _ in untied.named_parameters()]
    apart = [dict(zip(names, gradients(lane, untied), strict=True)) for lane in LANES]
    (together,) = (added([[gradients(lane, decoder)[0]] for lane in LANES]),)
    within = tree_sum(part["embedding"] + part["head"] for part in apart)
    across = [tree_sum(part[name] for part in apart) for name in ("embedding", "head")]
    assert within is not None and across[0] is not None and across[1] is not None
    assert torch.equal(within, together[0])
    if torch.equal(across[0] + across[1], together[0]):
        pytest.skip("both orders give the same bits on this machine")
