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
from rlcore.models.streams import read_streams
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.weights.receipts import Check
from rlcore.weights.target import NamedTensors, ParameterSpec, TargetState, WeightTarget


class FencedTarget(WeightTarget, Protocol):
    """A weight target that knows when its sampler draws."""

    @property
    def policy_version(self) -> int:
        """Version of the last commit; 0 before the first."""

    @property
    def weights_digest(self) -> str:
        """Digest of the last commit; before the first, that of the weights it began with."""

    def sampling(self) -> AbstractContextManager[None]:
        """Hold the weights as they are while completions are drawn inside.

        Raises WeightSyncError if they are drawn in another thread, if a sync has begun and not committed, and if the
        weights were written without a sync, before or during it.
        """


class Fence:
    """Drawing and loading exclude each other, in whatever threads they are called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_sampling = False

    @contextmanager
    def idle(self, what: str) -> Iterator[None]:
        """Let nothing be drawn inside. Raises WeightSyncError with `what` is wanted while completions are drawn."""
        with self._lock:
            if self.is_sampling:
                raise WeightSyncError(
                    f"{what} while the sampler runs", check=Check.FENCE, remedy="wait until sample() has returned"
                )
            yield

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Let nothing be loaded inside."""
        with self.idle("completions are being drawn"):
            self.is_sampling = True
        try:
            yield
        finally:
            self.is_sampling = False


class LocalTarget:
    """The weights of a decoder that only this target writes, as `FencedTarget`."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.fence = Fence()
        self._begun: int | None = None
        self.policy_version, self.weights_digest = 0, weights_digest(self._parameters())
        self._num_writes = self._count_writes()

    def describe(self) -> TargetState:
        specs = {name: ParameterSpec.of(parameter) for name, parameter in self._parameters().items()}
        return TargetState(self.policy_version, self.weights_digest, specs)

    def begin(self, policy_version: int) -> None:
        """As `WeightTarget.begin`; nothing outlives a call of `sample`, so nothing has to be dropped."""
        with self.fence.idle("weights are being loaded"):
            self._begun = policy_version

    @torch.no_grad()
    def write(self, weights: NamedTensors) -> None:
        """As `WeightTarget.write`. Raises WeightSyncError for a name, type or shape that it does not have."""
        self._check_begun()
        parameters = self._parameters()
        for name, tensor in weights:
            check_fits(name, tensor, parameters).copy_(tensor)

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        parameters = self._parameters()
        return tensor_digests({name: parameters[name] for name in names})

    @torch.no_grad()
    def canary(self, tokens: Tensor) -> Tensor:
        tokens = tokens.to(self._decoder.embedding.device)
        return token_logprobs(self._decoder(tokens[None, :-1])[0], tokens[1:]).cpu()

    def commit(self, weights_digest: str) -> None:
        self.policy_version, self.weights_digest = self._check_begun(), weights_digest
        self._num_writes = self._count_writes()
        self._begun = None

    @contextmanager
    def sampling(self) -> Iterator[None]:
        with self.fence.sampling():
            if self._begun is not None:
                raise WeightSyncError(
                    f"the sync of version {self._begun} has begun, and has not ended",
                    check=Check.FENCE,
                    remedy="sample after a sync that passed; after one that failed, sync with previous=None",
                )
            self._check_writes()
            yield
            self._check_writes()

    def streams(self, tokens: Tensor) -> Mapping[str, Tensor]:
        """Return the streams of a pass over all tokens but the last, to find the layer that differs."""
        return read_streams(self._decoder, tokens)

    def _parameters(self) -> dict[str, Tensor]:
        """Return the live parameters, under the names of `Decoder.named_parameters()`."""
        return dict(self._decoder.named_parameters())

    def _check_begun(self) -> int:
        if self._begun is None:
            raise WeightSyncError("weights were written without begin()", check=Check.FENCE)
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
                remedy="write weights by rlcore.weights.proven_sync, between two calls of sample()",
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
