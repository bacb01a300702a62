"""A value for each position, on a decoder of its own or a shared one."""

import torch
from torch import Tensor, nn

from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.row_sum import expand_rows


class ValueHead(nn.Module):
    """One number from a row of the last stream, in fp32; 0 everywhere until it has learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] -> [...]; a sum over the last dimension, which is taken row by row, not a product."""
        wide = hidden.float()
        values = (wide * expand_rows(self.weight.float(), wide)).sum(-1, keepdim=True)
        return (values + expand_rows(self.bias.float(), values)).squeeze(-1)


class Critic(nn.Module):
    """A decoder that ends in values."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.decoder = Decoder(config)
        self.decoder.head = None  # nobody reads logits here
        self.value_head = ValueHead(config.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [batch, length] -> values fp32 [batch, length]: position t has read tokens 0 to t."""
        values: Tensor = self.value_head(self.decoder.hidden(tokens))
        return values
