"""Small real samplers, the half that holds weights: one that is right, and one for each way to be wrong."""

import copy

import torch
from torch import Tensor, nn

from rlcore.errors import WeightSyncError
from rlcore.models.cache import KeyValueCache
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.weights.canary import policy_logprobs
from rlcore.weights.receipts import Check

CONFIG = DecoderConfig("qwen3", 40, 32, 2, 4, 2, 8, 48, max_length=64)
"""Heads together are as wide as the stream, so that `out` is square: its transpose fits."""
UNTIED = DecoderConfig("qwen2", 40, 32, 2, 4, 2, 8, 48, max_length=64, is_tied=False)


def policy(config: DecoderConfig = CONFIG, seed: int = 1) -> Decoder:
    return Decoder(config).initialise(seed)


@torch.no_grad()
def learn(decoder: Decoder, seed: int = 0, size: float = 0.05) -> None:
    """Move every parameter but the last norm, as an optimizer would: that one is frozen."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        if name != "norm":
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)


class Holder:
    """Keeps a copy of the weights, and computes with it."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = copy.deepcopy(decoder).requires_grad_(False)
        self.policy_version, self.weights_digest = 0, ""
        self.is_sampling = False

    def parameters(self) -> dict[str, Tensor]:
        return dict(self.decoder.named_parameters())

    def loaded(self, policy_version: int, weights_digest: str) -> None:
        if self.is_sampling:
            raise WeightSyncError("it samples", check=Check.FENCE)
        self.policy_version, self.weights_digest = policy_version, weights_digest

    def canary(self, tokens: Tensor) -> Tensor:
        return policy_logprobs(self.decoder, tokens)


class PrefixCaching(Holder):
    """Keeps keys and values of prefixes it has read; salted with the version they are not found by the next one."""

    def __init__(self, decoder: Decoder, *, is_salted: bool) -> None:
        super().__init__(decoder)
        self.is_salted = is_salted
        self.prefixes: dict[tuple[object, ...], KeyValueCache] = {}

    @torch.no_grad()
    def canary(self, tokens: Tensor) -> Tensor:
        prefix, rest = tokens[None, :8], tokens[None, 8:-1]
        key = (tuple(prefix[0].tolist()), self.weights_digest if self.is_salted else None)
        head = self.decoder.hidden(prefix)
        if key not in self.prefixes:
            self.prefixes[key] = KeyValueCache.empty(CONFIG, 1, 32, like=self.decoder.embedding)
            self.decoder.extend(prefix, self.prefixes[key], [0])
        tail = self.decoder.extend(rest, self.prefixes[key], [8])
        return token_logprobs(self.decoder.logits(torch.cat((head, tail), 1)), tokens[None, 1:])[0]


class Converting(Holder):
    """Samples with a copy that it made of the weights when it was built, as one that fuses or quantises them does."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.converted = copy.deepcopy(self.decoder)

    def canary(self, tokens: Tensor) -> Tensor:
        return policy_logprobs(self.converted, tokens)


class Sleeping(Holder):
    """Loses its weights while it sleeps: they are those it was built with when it wakes."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.built_with = copy.deepcopy(self.decoder.state_dict())

    def sleep(self) -> None:
        self.decoder.load_state_dict(self.built_with)


class Copying(Holder):
    """Gives copies of its parameters: what is written there is lost."""

    def parameters(self) -> dict[str, Tensor]:
        return {name: parameter.clone() for name, parameter in super().parameters().items()}


class Forgetful(Holder):
    """Does not tell of its head, as one that takes it for tied."""

    def parameters(self) -> dict[str, Tensor]:
        return {name: parameter for name, parameter in super().parameters().items() if name != "head"}


class Sharing(Holder):
    """Has no copy: the policy itself."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.decoder = decoder


class WronglyTied(Holder):
    """Keeps its head in the memory of the embedding, which are two in the policy."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.decoder.head = nn.Parameter(self.decoder.embedding.data, requires_grad=False)


class Meta(Holder):
    """Has parameters without memory."""

    def parameters(self) -> dict[str, Tensor]:
        return {name: parameter.to("meta") for name, parameter in super().parameters().items()}
