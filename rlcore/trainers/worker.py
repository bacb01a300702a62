"""The models of a run on one rank: what a controller calls when training has processes of its own.

    RemoteTrainer ─▶ handle.forward_backward("policy", microbatches, loss) ─▶ every rank: its microbatches, its trainer

A rank builds its models from the configuration, as one process does, and then makes them part of a parallel trainer.
It has the level of determinism, checks its own updates, and records gradients, weights and optimizer state.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch.distributed as dist
from torch import Tensor

from rlcore.checkpoints.state_shards import read_state, write_state
from rlcore.checks.observers import checks_of_level
from rlcore.config import RunConfig
from rlcore.data.microbatches import Microbatch, balanced_microbatches
from rlcore.determinism import at_level
from rlcore.distributed.dispatch import Broadcast, Collect, Entry, Function, Partition, Split, Table
from rlcore.distributed.process_report import ProcessName, ProcessReport, report_of
from rlcore.distributed.worker import Worker
from rlcore.log import PartRecorder
from rlcore.memory import keep_freed_memory
from rlcore.models.build import build_model
from rlcore.numerics.probe import num_threads
from rlcore.observability.events import Event
from rlcore.observability.observers import Observers
from rlcore.observability.recording import StepRecorder
from rlcore.trainers.base import Loss, MicrobatchLoss, Reader, Reading, Trainer, TrainerState
from rlcore.trainers.joining import join_grid, leave_grid
from rlcore.trainers.models import LocalModels, alone
from rlcore.trainers.parallel import build_parallel
from rlcore.trainers.sentinel import sentinels
from rlcore.trainers.shards import on_first, owned
from rlcore.weights.source import SourceDescription, describe

_ONE: Split = Broadcast()
_PASSES: dict[str, Split] = {"name": _ONE, "microbatches": Partition(balanced_microbatches)}


class ModelWorker(Worker):
    """Builds, trains and reads the models of a rank by their names: policy, critic, reference."""

    dispatch_table: ClassVar[Table] = {
        "report": Entry(collect=Collect.LIST),
        "observe": Entry({"event": _ONE}),
        "build_policy": Entry(),
        "build_critic": Entry({"learning_rate": _ONE}),
        "build_reference": Entry(),
        "check_models": Entry(),
        "forward_backward": Entry({**_PASSES, "loss": Function(), "num_microbatches": _ONE}, collect=Collect.ROWS),
        "optimizer_step": Entry({"name": _ONE, "learning_rate": _ONE, "max_norm": _ONE}),
        "read": Entry({**_PASSES, "reading": Function()}, collect=Collect.ROWS),
        "gradient_digest": Entry({"name": _ONE}),
        "optimizer_digest": Entry({"name": _ONE}),
        "restart_optimizer": Entry({"name": _ONE}),
        "describe_weights": Entry({"name": _ONE}),
        "weight": Entry({"name": _ONE, "parameter": _ONE}),
        "weight_digests": Entry({"name": _ONE}),
        "logprobs": Entry({"name": _ONE, "tokens": _ONE}),
        "load_weights": Entry({"name": _ONE, "weights": _ONE}),
        "rest": Entry({"name": _ONE, "directory": _ONE}),
        "write_state": Entry({"name": _ONE, "path": _ONE}),
        "read_state": Entry({"name": _ONE, "path": _ONE}),
        "save": Entry({"name": _ONE}),
        "load": Entry({"name": _ONE, "state": _ONE}),
    }

    def __init__(
        self, config: RunConfig, level: str, length: int, open_recorders: Sequence[Callable[[], PartRecorder]]
    ) -> None:
        """Join the other ranks and build the model; `length` is the longest sequence of the run.

        `open_recorders` has a function for each rank. Raises LevelError, CheckpointError.
        """
        keep_freed_memory()
        self._recorder = open_recorders[self.context.rank]()
        self._config, self._held = config, ExitStack()
        self._grid = join_grid(config.deployment, config.model.device) if self.context.size > 1 else None
        _, decoder = build_model(config)
        section, threads = config.model, (config.runtime.training_threads, config.runtime.sampling_threads)
        held = at_level(
            level,
            decoder.config,
            dtype=decoder.embedding.dtype,
            device=section.device,
            length=length,
            threads=threads,
        )
        self._held.enter_context(held)
        self._held.enter_context(num_threads(threads[0]))
        own = iter if self._grid is None else partial(owned, grid=self._grid)
        checks = (*checks_of_level(level), *sentinels(self._grid, config.deployment.sentinel_every))
        self._observers = Observers(*checks, StepRecorder(self._recorder, own=own))
        is_canonical = level == "invariant"
        parallel = alone if self._grid is None else partial(build_parallel, grid=self._grid, is_canonical=is_canonical)
        self._models = LocalModels(config, decoder, self._observers, parallel=parallel)
        self._readers: dict[str, Reader] = {}
        self._trainers: dict[str, Trainer] = {}

    def report(self) -> ProcessReport:
        """Return what is in effect in this process: variables, and what torch says."""
        context = self.context
        return report_of(ProcessName(context.role, ("policy", "critic", "reference"), context.rank))

    def observe(self, event: Event) -> None:
        """Let the checks and the recorder of this rank see where a step begins and ends."""
        self._observers.emit(event)

    def build_policy(self) -> None:
        """Build the trainer of the policy."""
        self._add(self._models.policy())

    def build_critic(self, learning_rate: float) -> None:
        """Build the trainer of the critic from the policy."""
        with self._observers.stage("critic"):
            self._add(self._models.critic(learning_rate))

    def build_reference(self) -> None:
        """Build the reference: the policy as it is now."""
        self._readers["reference"] = self._models.reference()

    def check_models(self) -> None:
        """Let the checks see what was built."""
        self._models.check()

    def forward_backward(
        self, name: str, microbatches: Sequence[Microbatch], loss: Loss, num_microbatches: int
    ) -> list[MicrobatchLoss]:
        """Compute this rank's part of the gradient; `num_microbatches` is the number over all ranks."""
        with self._observers.stage("update"):
            trainer = self._trainers[name]
            return list(trainer.forward_backward(microbatches, loss, num_microbatches=num_microbatches))

    def optimizer_step(self, name: str, learning_rate: float, max_norm: float | None) -> float:
        """Move the weights once; return the norm of the gradient before clipping."""
        with self._observers.stage("optimizer"):
            return self._trainers[name].optimizer_step(learning_rate=learning_rate, max_norm=max_norm)

    def read(self, name: str, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read this rank's microbatches without a gradient."""
        return self._readers[name].read(microbatches, reading)

    def gradient_digest(self, name: str) -> str:
        """Return the digest of the gradient."""
        return self._trainers[name].gradient_digest()

    def optimizer_digest(self, name: str) -> str:
        """Return the digest of all that the optimizer keeps."""
        return self._trainers[name].optimizer_digest()

    def restart_optimizer(self, name: str) -> None:
        """Forget all that the optimizer has seen."""
        self._trainers[name].restart_optimizer()

    def describe_weights(self, name: str) -> SourceDescription:
        """Return names, types and shapes of the weights."""
        return describe(self._readers[name].weights())

    def weight(self, name: str, parameter: str) -> Tensor:
        """Return one tensor, whole, on rank 0."""
        found = self._readers[name].weights().tensors[parameter]
        return found if self.context.rank == 0 else found.new_empty(0)

    def weight_digests(self, name: str) -> dict[str, str]:
        """Return the digest of each tensor."""
        return self._readers[name].weights().digests()

    def logprobs(self, name: str, tokens: Tensor) -> Tensor:
        """Return what the policy gives each token after the first."""
        return self._readers[name].weights().logprobs(tokens)

    def load_weights(self, name: str, weights: Mapping[str, Tensor]) -> None:
        """Copy weights into a model."""
        self._readers[name].load_weights(weights)

    def rest(self, name: str, directory: Path | None) -> None:
        """Let this rank's part of a model leave its device until it is used again."""
        self._readers[name].rest(directory)

    def write_state(self, name: str, path: Path) -> None:
        """Write this rank's part of a trainer's state into a directory."""
        write_state(path, self._trainers[name].save(), self._group)

    def read_state(self, name: str, path: Path) -> None:
        """Load this rank's part of what `write_state` has written."""
        parameters = dict(self._models.built[name].named_parameters())
        self._trainers[name].load(read_state(path, parameters, self._group))

    def save(self, name: str) -> TrainerState:
        """Return the whole state of a trainer on rank 0, and nothing on the others."""
        state = self._trainers[name].save()
        return TrainerState(self._on_first(state.weights), self._on_first(state.optimizer))

    def load(self, name: str, state: TrainerState) -> None:
        """Copy a state into a model and its optimizer."""
        self._trainers[name].load(state)

    def close(self) -> None:
        """End the record, and leave the level and the group of ranks."""
        self._recorder.close()
        self._held.close()
        if self._grid is not None:
            leave_grid()

    def _on_first(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors) if self._grid is None else dict(on_first(tensors.items(), self._grid))

    @property
    def _group(self) -> dist.ProcessGroup | None:
        return None if self._grid is None else self._grid.world.group

    def _add(self, trainer: Trainer) -> None:
        self._trainers[trainer.name] = self._readers[trainer.name] = trainer
