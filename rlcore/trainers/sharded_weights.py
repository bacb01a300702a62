"""The weights of a sharded model as a sync reads them: whole, one tensor at a time.

Every question is collective: all ranks ask it, in the same order. Beside its shards a rank holds one whole tensor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from torch import Tensor, nn

from rlcore.data.microbatches import Microbatch
from rlcore.models.decoder import Decoder
from rlcore.trainers.base import Reading
from rlcore.trainers.rank_grid import RankGrid
from rlcore.trainers.shards import full_tensor, owned_digests
from rlcore.weights.canary import policy_logprobs
from rlcore.weights.source import LiveWeights
from rlcore.weights.target import ParameterSpec

Read = Callable[[Sequence[Microbatch], Reading], list[Tensor]]
"""Reads microbatches without a gradient, in lockstep with the other ranks."""


class FullTensors(Mapping[str, Tensor]):
    """Sharded tensors by name; each is made whole when it is asked for, in memory of its own."""

    def __init__(self, shards: Mapping[str, Tensor]) -> None:
        self._shards = shards

    def __getitem__(self, name: str) -> Tensor:
        return full_tensor(self._shards[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)


class ShardedWeights(LiveWeights):
    """The weights of a sharded model, as they are when they are read."""

    def __init__(self, model: nn.Module, grid: RankGrid, read: Read) -> None:
        super().__init__(model)
        self._grid = grid
        self._read = read

    @property
    def shards(self) -> dict[str, Tensor]:
        """What this rank has of each tensor, detached, tied ones under each of their names."""
        return {name: p.detach() for name, p in self._model.named_parameters(remove_duplicate=False)}

    @property
    def tensors(self) -> FullTensors:
        """The whole tensors, by name."""
        return FullTensors(self.shards)

    def specs(self) -> dict[str, ParameterSpec]:
        """Return type and shape of each tensor; a sharded one has no memory that another process could share."""
        return {name: ParameterSpec(shard.dtype, tuple(shard.shape), None) for name, shard in self.shards.items()}

    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor."""
        return owned_digests(self.shards.items(), self._grid)

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Return what the policy gives each token after the first: [length] -> fp32 [length - 1]."""
        only = Microbatch(0, (0,), tokens.unsqueeze(0), 1)
        (found,) = self._read([only], _canary_logprobs)
        return found

    def decoder(self) -> Decoder:
        """Return a copy of the whole model, on every rank."""
        copy = Decoder(self.config).to(self.dtype)
        copy.load_state_dict({name: full_tensor(tensor) for name, tensor in self.shards.items()})
        return copy


def _canary_logprobs(model: nn.Module, microbatch: Microbatch) -> Tensor:
    return policy_logprobs(cast(Decoder, model), microbatch.tokens[0])
