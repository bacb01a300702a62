"""Models in other processes, as a controller holds them: one generic handle over the dispatch table of the workers."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from rlcore.config import RunConfig
from rlcore.log import Record, Recorder
from rlcore.models.decoder import Decoder
from rlcore.trainers.trainer import Models, Trainer, peak_rate
from rlcore.weights.source import FetchedTensors, SourceDescription, WeightSource, fetched_decoder

if TYPE_CHECKING:
    from rlcore.trainers.worker import ModelWorker


class RemoteModel:
    """A trainer whose methods are those of the dispatch table of `ModelWorker`, called with the model's name."""

    def __init__(self, name: str, workers: "ModelWorker", peak_rate: float) -> None:
        self.name, self.peak_rate, self._workers = name, peak_rate, workers

    def __getattr__(self, method: str) -> Any:
        return partial(getattr(self._workers, method), self.name)

    def weights(self) -> WeightSource:
        """Return the weights as they are now."""
        return cast(WeightSource, RemoteWeights(self.name, self._workers))


def builder(
    config: RunConfig, decoder: Decoder, recorder: Recorder, workers: "ModelWorker | None"
) -> tuple[Record, Callable[[str], Trainer]]:
    """Return a run's record, and what builds its models by their names: in this process, or by the workers."""
    if workers is None:
        record = Record(recorder)
        return record, Models(config, decoder, record).build

    def build(name: str) -> Trainer:
        workers.build(name)
        return cast(Trainer, RemoteModel(name, workers, peak_rate(config, name)))

    return RecordWithWorkers(recorder, workers), build


class RemoteWeights:
    """The weights of a model of the workers, as `WeightSource`."""

    def __init__(self, model: str, workers: "ModelWorker") -> None:
        self._about = workers.describe_weights(model)
        self.tensors = FetchedTensors(self._about.specs, partial(workers.weight, model))
        self.digests = partial(workers.weight_digests, model)
        self.logprobs = partial(workers.logprobs, model)

    def describe(self) -> SourceDescription:
        return self._about

    def decoder(self) -> Decoder:
        """Build a decoder with a copy of the weights."""
        return fetched_decoder(self)


class RecordWithWorkers(Record):
    """The record of a controller, whose workers record the same steps."""

    def __init__(self, recorder: Recorder, workers: "ModelWorker") -> None:
        super().__init__(recorder)
        self._workers = workers

    def begin_step(self, step: int) -> None:
        """Begin a step in all processes."""
        self._workers.begin_step(step)
        super().begin_step(step)

    def end_step(self, **curve: float) -> None:
        """End the step in all processes; the curve is the controller's."""
        self._workers.end_step()
        super().end_step(**curve)
