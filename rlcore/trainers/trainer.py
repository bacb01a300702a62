"""Turns microbatches into updates of a model's weights, in one process or as one of several ranks.

    microbatches ─backward─▶ gradients ─canonical tree─▶ one sum for each parameter ─clip─▶ AdamW on fp32 weights

Nothing here depends on who computed which microbatch, nor when.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import combined_digest, flat_digest
from rlcore.checkpoint import read_state, write_state
from rlcore.config import OptimizerSection, PpoSection, RunConfig, RuntimeSection
from rlcore.data.microbatches import Microbatch
from rlcore.log import NullRecorder, Record
from rlcore.models.decoder import Critic, Decoder
from rlcore.numerics.probe import num_threads
from rlcore.trainers.gradients import (
    Loss,
    MicrobatchLoss,
    OneProcess,
    Reading,
    full_tensor,
    local_part,
    non_finite_gradient,
    trained_parameters,
)
from rlcore.weights.source import LiveWeights

if TYPE_CHECKING:
    from rlcore.trainers.offload import OffloadedState
    from rlcore.trainers.ranks import RankGrid

MASTER = "master"
"""Kind of the fp32 weights in a state."""


class Trainer:
    """Trains the weights of one model, or only reads them. On the ranks of a grid every rank calls every method."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        peak_rate: float,
        *,
        section: OptimizerSection,
        runtime: RuntimeSection,
        record: Record | None = None,
        grid: "RankGrid | None" = None,
        is_canonical: bool = True,
        sentinel_every: int = 0,
    ) -> None:
        """Train a model, which is bitwise equal on all ranks of `grid` and sharded here if its rows share weights.

        `is_canonical`, for level invariant, sums gradients to the bits of one process; without it the library sums
        them, to bits that depend on the grid.
        """
        self.name, self.model, self.peak_rate = name, model, peak_rate
        self.gradients: list[Tensor] | None = None
        """Sum of the microbatches' gradients by parameter, fp32, from a backward pass to the step that uses it."""
        self.reduction, self._sentinel = OneProcess(model, runtime.world_size), None
        if grid is not None:
            from rlcore.trainers.fsdp import Shards  # with FSDP2, whose import takes seconds
            from rlcore.trainers.reductions import Replicas
            from rlcore.trainers.sentinel import ReplicaSentinel

            self.reduction = (Shards if grid.shard.size > 1 else Replicas)(model, grid, is_canonical=is_canonical)
            self._sentinel = ReplicaSentinel(name, grid, sentinel_every) if sentinel_every else None
        self._away: OffloadedState | None = None
        self._section, self._runtime = section, runtime
        self._record = record or Record(NullRecorder())
        self.restart_optimizer()

    def forward_backward(self, microbatches: Sequence[Microbatch], loss: Loss) -> tuple[MicrobatchLoss, ...]:
        """Compute the gradient of the sum of all ranks' losses; return this rank's in the order of microbatches.

        Raises, on every rank, NonFiniteError for a loss, and InvalidValueError unless the ranks have each microbatch,
        numbered from 0, once.
        """
        self._wake()
        own = sorted(microbatches, key=lambda each: each.number)
        with num_threads(self._runtime.training_threads, "forward", "loss", "backward"):
            losses, self.gradients = self.reduction.backward(own, loss)
        return losses

    def optimizer_step(self, *, learning_rate: float, max_norm: float | None) -> float:
        """Clip the gradient, move the weights once, and return the gradient's norm before clipping.

        Raises NonFiniteError naming the first gradient that is not finite.
        """
        assert self.gradients is not None, "forward_backward comes first"
        gradients = dict(zip(self.masters, self.gradients, strict=True))
        self.gradients = None
        with num_threads(self._runtime.training_threads, "optimizer"):
            self._record.all("backward", ((f"{self.name}.{name}", value) for name, value in gradients.items()))
            norm = self.reduction.norm([*gradients.values()])
            if not math.isfinite(norm):
                raise non_finite_gradient(gradients)
            if max_norm is not None and norm > max_norm:  # by their ratio: clip_grad_norm_ adds 1e-6 to the norm
                torch._foreach_mul_([local_part(each) for each in gradients.values()], max_norm / norm)
            if self._sentinel is not None:
                self._sentinel.before(self.state(), gradients)
            for name, master in self.masters.items():
                master.grad = gradients[name].to(master.dtype)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for name, parameter in trained_parameters(self.model).items():
                    if parameter is not self.masters[name]:
                        local_part(parameter).copy_(local_part(self.masters[name]))
            if self._sentinel is not None:
                self._sentinel.after(self.state())
            self._record.all("optimizer", ((f"{self.name}.{key}", value) for key, value in self.state().items()))
        return norm

    def read(self, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read microbatches without a gradient; return what was read, in their order. Ranks may have any number."""
        self._wake()
        with torch.no_grad(), num_threads(self._runtime.training_threads, "reference"):
            return self.reduction.read(microbatches, reading)

    def weights(self) -> LiveWeights:
        """Return the live weights; those of shards are made whole one at a time, and each question is collective."""
        self._wake()
        return self.reduction.weights()

    def gradient_digest(self) -> str:
        """Return the digest of the gradient, as one flat fp32 tensor, between a backward pass and its step."""
        assert self.gradients is not None, "forward_backward comes first"
        return flat_digest(map(full_tensor, self.gradients))

    def optimizer_digest(self) -> str:
        """Return the digest of all that the optimizer keeps."""
        kept = {name: value for name, value in self.state().items() if name not in self.masters}
        return combined_digest(self.reduction.digests(kept))

    def restart_optimizer(self) -> None:
        """Forget all that the optimizer has seen."""
        self._wake()
        self.masters = {name: build_master(parameter) for name, parameter in trained_parameters(self.model).items()}
        """By name: the weights that the optimizer moves, fp32 where the model's own are narrower."""
        self.optimizer = build_adamw(self.masters, self._section, self.peak_rate)

    def state(self) -> dict[str, Tensor]:
        """Return the live state: each weight as PARAMETER, and what the optimizer keeps of it as PARAMETER.KIND.

        Shards are as this rank has them; a parameter that has had no step has no moments.
        """
        self._wake()
        found = {}
        for name, parameter in trained_parameters(self.model).items():
            found[name], master = parameter.detach(), self.masters[name]
            own = {} if master is parameter else {MASTER: master.detach()}
            for kind, value in sorted({**self.optimizer.state.get(master, {}), **own}.items()):
                found[f"{name}.{kind}"] = value
        return found

    def write_state(self, path: Path) -> None:
        """Write the state into a directory that exists and every rank sees. Raises OSError."""
        write_state(path, self.state(), self.reduction.group)

    @torch.no_grad()
    def read_state(self, path: Path) -> None:
        """Load what `write_state` has written, by any number of ranks. Raises CheckpointError."""
        self._wake()
        found = read_state(path, trained_parameters(self.model), self.reduction.group)
        for name, parameter in trained_parameters(self.model).items():
            local_part(parameter).copy_(local_part(found.pop(name)))
        self.restart_optimizer()
        for key, value in found.items():
            name, _, kind = key.rpartition(".")
            if kind == MASTER:
                local_part(self.masters[name].detach()).copy_(local_part(value))
            else:
                self.optimizer.state[self.masters[name]][kind] = value

    def rest(self, directory: Path | None) -> None:
        """Leave the device for files in a directory, or for the host's memory, until the model is used again.

        It has no gradient: it is between two updates. Raises OSError if the disk is full; the next use raises
        PlacementError if a bit has changed.
        """
        from rlcore.trainers.offload import OffloadedState

        assert self.gradients is None, "the optimizer's step comes first"
        if self._away is None:
            self._away = OffloadedState(self.model, self.masters, self.optimizer, self.state, directory)

    def _wake(self) -> None:
        """Come back to the device, before the model is used."""
        if self._away is not None:
            away, self._away = self._away, None
            away.wake()


def build_adamw(
    parameters: Mapping[str, nn.Parameter], section: OptimizerSection, learning_rate: float
) -> torch.optim.AdamW:
    """Build torch's foreach implementation, by name: the fused one has different bits, also if it is sharded.

    Norms, biases and embeddings are not decayed; of a tied head neither.
    """
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in parameters.items():
        groups[not name.endswith(("norm", "bias", "embedding"))].append(parameter)
    return torch.optim.AdamW(
        [{"params": group, "weight_decay": section.weight_decay * decays} for decays, group in groups.items()],
        lr=learning_rate,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        foreach=True,
    )


def build_master(parameter: nn.Parameter) -> nn.Parameter:
    """Return the weight that the optimizer moves: the parameter itself, or an fp32 copy of a narrower one.

    bf16 has 8 bits: at a small rate no step would move such a weight at all.
    """
    if parameter.dtype.itemsize >= torch.float32.itemsize:
        return parameter
    return nn.Parameter(parameter.detach().float())


def peak_rate(config: RunConfig, name: str) -> float:
    """Return the learning rate of a model before its schedule; 0 for the reference, which is never trained."""
    algorithm = config.algorithm
    critic_rate = algorithm.critic_learning_rate if isinstance(algorithm, PpoSection) else 0.0
    return {"policy": config.optimizer.learning_rate, "critic": critic_rate, "reference": 0.0}[name]


class Models:
    """Builds the trainers of a run, or of a rank: policy first, and from it as it is then the critic and reference."""

    def __init__(
        self,
        config: RunConfig,
        decoder: Decoder,
        record: Record,
        *,
        grid: "RankGrid | None" = None,
        is_canonical: bool = True,
    ) -> None:
        self._config, self._decoder = config, decoder
        runtime, deployment = config.runtime, config.deployment
        if grid is None:
            runtime = runtime.model_copy(update={"world_size": max(runtime.world_size, deployment.num_ranks)})
        self._build = partial(
            Trainer,
            section=config.optimizer,
            runtime=runtime,
            record=record,
            grid=grid,
            is_canonical=is_canonical,
            sentinel_every=deployment.sentinel_every,
        )
        self.built: dict[str, Trainer] = {}

    def build(self, name: str) -> Trainer:
        """Build the trainer of "policy", "critic", which expects nothing yet, or "reference"."""
        model: nn.Module = self._decoder
        if name != "policy":
            policy = self.built["policy"].weights().decoder()
            model = build_critic(policy) if name == "critic" else copy.deepcopy(policy)
            if name == "reference" and policy.config.lora is None:  # with adapters, its state is these alone
                model.requires_grad_(False)
        self.built[name] = self._build(name, model, peak_rate(self._config, name))
        return self.built[name]


def build_critic(decoder: Decoder) -> Critic:
    """Build a critic that reads as the policy does, and expects nothing yet."""
    critic = Critic(decoder.config).to(decoder.embedding.device, decoder.embedding.dtype)
    critic.decoder.load_state_dict({name: value for name, value in decoder.state_dict().items() if name != "head"})
    return critic
