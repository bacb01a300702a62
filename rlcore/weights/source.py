"""Weights as a sync reads them, wherever the trainer is: by name, one tensor at a time, with their digests."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import combined_digest, tensor_digests
from rlcore.models.config import DecoderConfig
from rlcore.models.decoder import Decoder, is_adapter
from rlcore.weights.canary import policy_logprobs
from rlcore.weights.target import ParameterSpec


@dataclass(frozen=True, slots=True)
class SourceDescription:
    """What is known of weights without fetching one."""

    config: DecoderConfig
    dtype: torch.dtype
    names: tuple[str, ...]
    """Of the parameters in the model's order; of tied ones only the first."""
    tied: tuple[tuple[str, ...], ...]
    """Groups of names that are one parameter."""
    specs: dict[str, ParameterSpec]
    """Type, shape and memory of each tensor, tied ones under each of their names."""
    frozen: frozenset[str] = frozenset()
    """Names of the base of adapters, which never moves: a sampler has its own copy."""


class WeightSource(Protocol):
    """The weights of a model at one moment."""

    def describe(self) -> SourceDescription:
        """Return what another process needs to fetch the weights."""

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Detached tensors by name, tied ones under each of their names; one may be fetched when it is asked for."""

    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor."""

    def logprobs(self, tokens: Tensor) -> Tensor:
        """Return the log-probability of each token after the first: [length] -> fp32 [length - 1], on the CPU."""

    def decoder(self) -> Decoder:
        """Return a decoder with these weights, to look into."""


class FetchedTensors(Mapping[str, Tensor]):
    """Tensors by name, each fetched when it is asked for and not kept."""

    def __init__(self, names: Collection[str], fetch: Callable[[str], Tensor]) -> None:
        self._names, self._fetch = names, fetch

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._fetch(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def fetched_decoder(source: WeightSource) -> Decoder:
    """Build a decoder with a copy of the weights."""
    about = source.describe()
    decoder = Decoder(about.config).to(about.dtype)
    decoder.load_state_dict(dict(source.tensors))
    return decoder


def digest_of(source: WeightSource) -> str:
    """Return one digest for all weights: what a completion carries of those that drew it."""
    digests = source.digests()
    return combined_digest({name: digests[name] for name in source.describe().names})


class LiveWeights:
    """The weights of a model of this process, as they are when they are read, as `WeightSource`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def describe(self) -> SourceDescription:
        groups: dict[object, list[str]] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            place = (parameter.device, parameter.data_ptr(), parameter.shape, parameter.stride())
            has_memory = parameter.numel() and not parameter.is_meta
            groups.setdefault(place if has_memory else name, []).append(name)
        config, names = cast(DecoderConfig, self._model.config), [name for name, _ in self._model.named_parameters()]
        return SourceDescription(
            config=config,
            dtype=next(self._model.parameters()).dtype,
            names=tuple(names),
            tied=tuple(tuple(names) for names in groups.values() if len(names) > 1),
            specs=self._specs(),
            frozen=frozenset(name for name in names if config.lora and not is_adapter(name)),
        )

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return {name: p.detach() for name, p in self._model.named_parameters(remove_duplicate=False)}

    def _specs(self) -> dict[str, ParameterSpec]:
        return {name: ParameterSpec.of(tensor) for name, tensor in self.tensors.items()}

    def digests(self) -> dict[str, str]:
        return tensor_digests(self.tensors)

    @torch.no_grad()
    def logprobs(self, tokens: Tensor) -> Tensor:
        return policy_logprobs(self.decoder(), tokens)

    def decoder(self) -> Decoder:
        return cast(Decoder, self._model)
