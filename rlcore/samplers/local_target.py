"""The weight target of a sampler in this process: a decoder, its version and digest, and the fence around both."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

from harness.bits.tensor_digests import tensor_digests, weights_digest
from rlcore.errors import WeightSyncError
from rlcore.models.decoder import Decoder
from rlcore.models.streams import kept_streams
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.weights.receipts import Check
from rlcore.weights.target import Difference, ParameterSpec, TargetState, WeightTarget


class FencedTarget(WeightTarget, Protocol):
    """A weight target that knows when its sampler draws."""

    @property
    def policy_version(self) -> int:
        """Version of the last commit."""

    @property
    def weights_digest(self) -> str:
        """Digest of the last commit."""

    def sampling(self) -> AbstractContextManager[None]:
        """As `LocalTarget.sampling`."""


class LocalTarget:
    """The weights of a decoder that only this target writes.

    A sampler draws inside `sampling()`. Drawing and writing exclude each other, in whatever threads they are called.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._lock = threading.Lock()
        self._is_sampling = False
        self._begun: int | None = None
        self._policy_version, self._weights_digest = 0, weights_digest(self._parameters())
        self._num_writes = self._count_writes()

    @property
    def policy_version(self) -> int:
        """Version of the last commit; 0 before the first."""
        return self._policy_version

    @property
    def weights_digest(self) -> str:
        """Digest of the last commit; before the first, that of the decoder's own weights."""
        return self._weights_digest

    @property
    def is_sampling(self) -> bool:
        """Whether completions are being drawn."""
        return self._is_sampling

    def describe(self) -> TargetState:
        """As `WeightTarget.describe`."""
        specs = {name: ParameterSpec.of(parameter) for name, parameter in self._parameters().items()}
        return TargetState(self._policy_version, self._weights_digest, specs)

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`; nothing outlives a call of `sample`, so nothing has to be dropped."""
        with self._lock:
            if self._is_sampling:
                raise WeightSyncError(
                    "weights are being loaded while the sampler runs",
                    check=Check.FENCE,
                    remedy="wait until sample() has returned",
                )
            self._begun = policy_version

    @torch.no_grad()
    def poison(self, names: Sequence[str]) -> None:
        """As `WeightTarget.poison`."""
        self._check_begun()
        parameters = self._parameters()
        for name in names:
            parameters[name].fill_(float("nan"))

    @torch.no_grad()
    def write(self, chunk: Mapping[str, Tensor]) -> Sequence[str]:
        """As `WeightTarget.write`. Raises WeightSyncError for a name, type or shape that it does not have."""
        self._check_begun()
        parameters = self._parameters()
        for name, tensor in chunk.items():
            found = check_fits(name, tensor, parameters)
            found.copy_(tensor)
        return list(chunk)

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        """As `WeightTarget.digests`."""
        parameters = self._parameters()
        return tensor_digests({name: parameters[name] for name in names})

    def compare(self, chunk: Mapping[str, Tensor]) -> Mapping[str, Difference]:
        """As `WeightTarget.compare`."""
        parameters = self._parameters()
        return {name: _difference(parameters[name].detach(), tensor) for name, tensor in chunk.items()}

    @torch.no_grad()
    def canary(self, tokens: Tensor) -> Tensor:
        """As `WeightTarget.canary`."""
        tokens = tokens.to(self._decoder.embedding.device)
        return token_logprobs(self._decoder(tokens[None, :-1])[0], tokens[1:]).cpu()

    def streams(self, tokens: Tensor) -> Mapping[str, Tensor]:
        """Return the streams of a pass over all tokens but the last, to find the layer that differs."""
        with kept_streams(self._decoder) as kept:
            self._read(tokens)
        return kept.streams(len(tokens) - 1)

    @torch.no_grad()
    def _read(self, tokens: Tensor) -> None:
        """Pass over all tokens but the last, by the way it samples."""
        self._decoder.hidden(tokens[None, :-1].to(self._decoder.embedding.device))

    def commit(self, weights_digest: str) -> None:
        """As `WeightTarget.commit`."""
        with self._lock:
            self._policy_version, self._weights_digest = self._check_begun(), weights_digest
            self._num_writes = self._count_writes()
            self._begun = None

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Hold the weights as they are while completions are drawn inside.

        Raises WeightSyncError if they are drawn in another thread, if a sync has begun and not committed, and if the
        weights were written without a sync, before or during it.
        """
        with self._lock:
            if self._is_sampling:
                raise WeightSyncError(
                    "completions are being drawn while the sampler runs",
                    check=Check.FENCE,
                    remedy="wait until sample() has returned",
                )
            if self._begun is not None:
                raise WeightSyncError(
                    f"the sync of version {self._begun} has begun, and has not ended",
                    check=Check.FENCE,
                    remedy="sample after a sync that passed; after one that failed, sync with previous=None",
                )
            self._check_writes()
            self._is_sampling = True
        try:
            yield
            self._check_writes()
        finally:
            self._is_sampling = False

    def _parameters(self) -> dict[str, Tensor]:
        """Return the live parameters, under the names of `Decoder.named_parameters()`."""
        return {**dict(self._decoder.named_parameters())}

    def _check_begun(self) -> int:
        if self._begun is None:
            raise WeightSyncError(
                "weights were written without begin()", check=Check.FENCE, legal="begin, poison, write, commit"
            )
        return self._begun

    def _count_writes(self) -> int:
        """Return how often torch has seen the parameters written."""
        return sum(parameter._version for parameter in self._decoder.parameters())

    def _check_writes(self) -> None:
        """Completions carry the digest of the weights that drew them: nobody may write others."""
        if self._count_writes() != self._num_writes:
            raise WeightSyncError(
                "the sampler's weights were written outside a sync",
                check=Check.FENCE,
                remedy="write weights by rlcore.weights.sync, between two calls of sample()",
            )


def check_fits(name: str, tensor: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return the parameter of a name; raise WeightSyncError if there is none, or if type or shape differ."""
    found = parameters.get(name)
    if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
        has = "no such parameter" if found is None else f"{ParameterSpec.of(found)}"
        raise WeightSyncError(
            f"was written as {ParameterSpec.of(tensor)}, and the sampler has {has}",
            check=Check.COVERAGE,
            parameter=name,
        )
    return found


def _difference(found: Tensor, wanted: Tensor) -> Difference:
    """Compare a parameter with a tensor, by bits."""
    num_nan = 0 if found.is_meta else int(found.isnan().sum())
    if found.is_meta or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return Difference(found.numel(), num_nan)
    if not found.numel():
        return Difference(0, 0)
    words = (tensor.detach().cpu().contiguous().reshape(-1, 1).view(torch.uint8) for tensor in (found, wanted))
    first, second = words
    return Difference(int((first != second).any(dim=-1).sum()), num_nan)


class OfTarget:
    """What a sampler with a fenced target says of its weights."""

    _target: FencedTarget

    @property
    def policy_version(self) -> int:
        """As `Sampler.policy_version`; 0 until weights are committed."""
        return self._target.policy_version

    @property
    def weights_digest(self) -> str:
        """As `Sampler.weights_digest`."""
        return self._target.weights_digest

    @property
    def weight_target(self) -> FencedTarget:
        """As `Sampler.weight_target`."""
        return self._target
