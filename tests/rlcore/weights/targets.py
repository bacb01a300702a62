"""Real weight targets of small decoders: one that is right, and one for each way to be wrong."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rlcore.models.cache import KeyValueCache
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.samplers.local_target import LocalTarget
from rlcore.weights.canary import policy_logprobs
from rlcore.weights.target import NamedTensors, TargetState

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


class Target(LocalTarget):
    """The right one: a copy of the weights."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = self.copied(decoder)
        super().__init__(self.decoder)

    def copied(self, decoder: Decoder) -> Decoder:
        """Return the decoder whose weights are written: a copy, or that of an engine."""
        return copy.deepcopy(decoder).requires_grad_(False)

    def overwrite(self, name: str) -> None:
        """Write into a parameter as no sync would."""
        self._parameters()[name][(0,) * self._parameters()[name].dim()] += 1.0


class PrefixCaching(Target):
    """Keeps keys and values of prefixes it has read; salted with the version they are not found by the next one."""

    def __init__(self, decoder: Decoder, *, is_salted: bool) -> None:
        super().__init__(decoder)
        self.is_salted = is_salted
        self.prefixes: dict[tuple[object, ...], KeyValueCache] = {}

    @torch.no_grad()
    def canary(self, tokens: Tensor) -> Tensor:
        prefix, rest = tokens[None, :8], tokens[None, 8:-1]
        key = (tuple(prefix[0].tolist()), self._begun if self.is_salted else None)
        head = self.decoder.hidden(prefix)
        if key not in self.prefixes:
            self.prefixes[key] = KeyValueCache.empty(CONFIG, 1, 32, like=self.decoder.embedding)
            self.decoder.extend(prefix, self.prefixes[key], [0])
        tail = self.decoder.extend(rest, self.prefixes[key], [8])
        return token_logprobs(self.decoder.logits(torch.cat((head, tail), 1)), tokens[None, 1:])[0]


class Converting(Target):
    """Samples with a copy that it made of the weights when it was built, as one that fuses or quantises them does."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.converted = copy.deepcopy(self.decoder)

    def canary(self, tokens: Tensor) -> Tensor:
        return policy_logprobs(self.converted, tokens)


class Buffering(Target):
    """A load clears what is no parameter: the positions that its attention computes with."""

    @torch.no_grad()
    def write(self, weights: NamedTensors) -> None:
        self.decoder._rotations = torch.zeros_like(self.decoder._rotations)
        super().write(weights)


class Sleeping(Target):
    """Loses its weights while it sleeps: they are those it was built with when it wakes."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.built_with = copy.deepcopy(self.decoder.state_dict())

    def sleep(self) -> None:
        self.decoder.load_state_dict(self.built_with)


class Copying(Target):
    """Writes into copies of its parameters."""

    @torch.no_grad()
    def write(self, weights: NamedTensors) -> None:
        for name, tensor in weights:
            self._parameters()[name].clone().copy_(tensor)


class QueriesOnly(Target):
    """Knows the queries of its last layer only, and skips what it does not know from the second version on."""

    @torch.no_grad()
    def write(self, weights: NamedTensors) -> None:
        for name, tensor in weights:
            is_skipped = name == "layers.1.qkv" and self._begun != 1
            rows = len(tensor) // 2 if is_skipped else len(tensor)
            self._parameters()[name][:rows].copy_(tensor[:rows])


class Rewriting(Target):
    """Does again with each load what only the first should do."""

    num_loads = 0

    @torch.no_grad()
    def write(self, weights: NamedTensors) -> None:
        super().write(self.counted(weights))

    def counted(self, weights: NamedTensors) -> Iterable[tuple[str, Tensor]]:
        for name, tensor in weights:
            self.num_loads += name == "layers.0.out"
            is_spoiled = name == "layers.0.out" and self.num_loads > 1
            yield name, self.spoiled(tensor) if is_spoiled else tensor

    @staticmethod
    def spoiled(tensor: Tensor) -> Tensor:
        """Return the layout that a second load makes of the first."""
        return tensor.t().clone()


class Permuting(Rewriting):
    """As `Rewriting`, rows in another order."""

    @staticmethod
    def spoiled(tensor: Tensor) -> Tensor:
        return tensor.flipud()


class Forgetful(Target):
    """Does not describe its head, as one that takes it for tied."""

    def describe(self) -> TargetState:
        state = super().describe()
        parameters = {name: spec for name, spec in state.parameters.items() if name != "head"}
        return TargetState(state.policy_version, state.weights_digest, parameters)


class Sharing(Target):
    """Has no copy: the policy itself."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        LocalTarget.__init__(self, decoder)


class WronglyTied(Target):
    """Keeps its head in the memory of the embedding, which are two in the policy."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(decoder)
        self.decoder.head = nn.Parameter(self.decoder.embedding.data, requires_grad=False)
