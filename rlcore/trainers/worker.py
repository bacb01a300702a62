"""The models of a run on one rank: what a controller calls when training has processes of its own.

    trainer.forward_backward(microbatches, loss) ─▶ every rank: its microbatches, its trainer

A rank builds its models from the configuration, as one process does. It has the level of determinism, and records
gradients, weights and optimizer state.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch.distributed as dist
from torch import Tensor

from rlcore.config import RunConfig
from rlcore.data.microbatches import Microbatch, balanced_microbatches
from rlcore.determinism import at_level, check_level
from rlcore.distributed.dispatch import Broadcast, Collect, Entry, Partition, Split, Table
from rlcore.distributed.process_report import ProcessName, ProcessReport, report_of
from rlcore.distributed.worker import Worker
from rlcore.log import PartRecorder, Record
from rlcore.memory import keep_freed_memory
from rlcore.models.build import build_model
from rlcore.numerics.probe import num_threads
from rlcore.trainers.gradients import Loss, MicrobatchLoss, Reading
from rlcore.trainers.ranks import join_grid
from rlcore.trainers.reductions import owned
from rlcore.trainers.trainer import Models
from rlcore.weights.source import SourceDescription

_ONE: Split = Broadcast()
_NAME: dict[str, Split] = {"name": _ONE}
_PASSES: dict[str, Split] = {**_NAME, "microbatches": Partition(balanced_microbatches)}


class ModelWorker(Worker):
    """Builds, trains and reads the models of a rank by their names: policy, critic, reference."""

    dispatch_table: ClassVar[Table] = {
        "report": Entry(collect=Collect.LIST),
        "begin_step": Entry({"step": _ONE}),
        "end_step": Entry(),
        "build": Entry(_NAME),
        "forward_backward": Entry({**_PASSES, "loss": _ONE}, collect=Collect.ROWS),
        "optimizer_step": Entry({**_NAME, "learning_rate": _ONE, "max_norm": _ONE}),
        "read": Entry({**_PASSES, "reading": _ONE}, collect=Collect.ROWS),
        "gradient_digest": Entry(_NAME),
        "optimizer_digest": Entry(_NAME),
        "restart_optimizer": Entry(_NAME),
        "describe_weights": Entry(_NAME),
        "weight": Entry({**_NAME, "parameter": _ONE}),
        "weight_digests": Entry(_NAME),
        "logprobs": Entry({**_NAME, "tokens": _ONE}),
        "rest": Entry({**_NAME, "directory": _ONE}),
        "write_state": Entry({**_NAME, "path": _ONE}),
        "read_state": Entry({**_NAME, "path": _ONE}),
    }

    def __init__(
        self, config: RunConfig, level: str, length: int, open_recorders: Sequence[Callable[[], PartRecorder]]
    ) -> None:
        """Join the other ranks and build the model; `length` is the longest sequence of the run.

        `open_recorders` has a function for each rank. Raises LevelError, CheckpointError.
        """
        keep_freed_memory()
        self._recorder = open_recorders[self.context.rank]()
        self._level, self._held = level, ExitStack()
        grid = join_grid(config.deployment, config.model.device) if self.context.size > 1 else None
        _, decoder = build_model(config)
        threads = config.runtime.training_threads, config.runtime.sampling_threads
        dtype, device = decoder.embedding.dtype, config.model.device
        held = at_level(level, decoder.config, dtype=dtype, device=device, length=length, threads=threads)
        self._held.enter_context(held)
        self._held.enter_context(num_threads(threads[0]))
        self._record = Record(self._recorder, own=iter if grid is None else partial(owned, grid=grid))
        self._models = Models(config, decoder, self._record, grid=grid, is_canonical=level == "invariant")
        self._trainers = self._models.built

    def report(self) -> ProcessReport:
        """Return what is in effect in this process: variables, and what torch says."""
        return report_of(ProcessName(self.context.role, ("policy", "critic", "reference"), self.context.rank))

    def begin_step(self, step: int) -> None:
        """Begin a step of the record. Raises LevelError if the level is not in effect any more."""
        check_level(self._level)
        self._record.begin_step(step)

    def end_step(self) -> None:
        """End a step of the record."""
        self._record.end_step()

    def build(self, name: str) -> None:
        """Build the trainer of a model."""
        self._models.build(name)

    def forward_backward(self, name: str, microbatches: Sequence[Microbatch], loss: Loss) -> tuple[MicrobatchLoss, ...]:
        """Compute this rank's part of the gradient."""
        return self._trainers[name].forward_backward(microbatches, loss)

    def optimizer_step(self, name: str, learning_rate: float, max_norm: float | None) -> float:
        """Move the weights once; return the norm of the gradient before clipping."""
        return self._trainers[name].optimizer_step(learning_rate=learning_rate, max_norm=max_norm)

    def read(self, name: str, microbatches: Sequence[Microbatch], reading: Reading) -> list[Tensor]:
        """Read this rank's microbatches without a gradient."""
        return self._trainers[name].read(microbatches, reading)

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
        return self._trainers[name].weights().describe()

    def weight(self, name: str, parameter: str) -> Tensor:
        """Return one tensor, whole, on rank 0."""
        found = self._trainers[name].weights().tensors[parameter]
        return found if self.context.rank == 0 else found.new_empty(0)

    def weight_digests(self, name: str) -> dict[str, str]:
        """Return the digest of each tensor."""
        return self._trainers[name].weights().digests()

    def logprobs(self, name: str, tokens: Tensor) -> Tensor:
        """Return what the policy gives each token after the first."""
        return self._trainers[name].weights().logprobs(tokens)

    def rest(self, name: str, directory: Path | None) -> None:
        """Let this rank's part of a model leave its device until it is used again."""
        self._trainers[name].rest(directory)

    def write_state(self, name: str, path: Path) -> None:
        """Write this rank's part of a trainer's state into a directory."""
        self._trainers[name].write_state(path)

    def read_state(self, name: str, path: Path) -> None:
        """Load this rank's part of what `write_state` has written."""
        self._trainers[name].read_state(path)

    def close(self) -> None:
        """End the record, and leave the level and the group of ranks."""
        self._recorder.close()
        self._held.close()
        if self.context.size > 1:
            dist.barrier()  # a rank that leaves earlier breaks the exchanges of others
            dist.destroy_process_group()
