"""Each usual mistake of a load is named from comparisons alone; what is none of them has no name."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.weights.layouts import layout_of
from tests.rlcore.weights.targets import Target

CONFIG = DecoderConfig("qwen3", 40, 32, 2, 4, 2, 8, 48, max_length=64)
"""Four query heads for two key heads: 32, 16 and 16 rows."""


def vkq(qkv: Tensor) -> Tensor:
    q, k, v = torch.split(qkv, [32, 16, 16])
    return torch.cat((v, k, q))


@pytest.mark.parametrize(
    ("name", "mistake", "said"),
    [
        ("layers.0.qkv", vkq, "its rows are in the order v, k, q, the policy's in q, k, v"),
        ("layers.1.gate_up", lambda x: torch.cat((x[48:], x[:48])), "its rows are in the order up, gate"),
        ("layers.0.out", lambda x: x.t(), "it is transposed"),
        ("layers.0.down", lambda x: x.bfloat16().float(), "it was rounded to bfloat16 on its way"),
        ("layers.0.down", lambda x: x.half().float(), "it was rounded to float16 on its way"),
        ("layers.0.down", lambda x: x * 1.5, ""),
    ],
)
def test_a_mistake_is_named(name: str, mistake: Callable[[Tensor], Tensor], said: str) -> None:
    policy = Decoder(CONFIG).initialise(1)
    source = {key: value.detach() for key, value in policy.named_parameters()}
    target = Target(policy)
    with torch.no_grad():
        target._parameters()[name].copy_(mistake(source[name]))
    found = layout_of(name, source, target)
    assert found.startswith(said) and bool(found) is bool(said)
