"""A worker of the models of a run, of which rank 1 has a bit flipped in its weights before its third update."""

from rlcore.trainers.worker import ModelWorker
from tests.support.rank_corruption import flip


class CorruptedWorker(ModelWorker):
    """Flips a bit."""

    num_updates = 0

    def optimizer_step(self, name: str, learning_rate: float, max_norm: float | None) -> float:
        """Flip, or not, and step."""
        trainer = self._trainers[name]
        if self.context.rank == 1 and self.num_updates == 2:
            flip(next(trainer.model.parameters()), 77)
        self.num_updates += 1
        return super().optimizer_step(name, learning_rate, max_norm)
