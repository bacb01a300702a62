"""Restarts after a worker's death, with stand-in runs."""

import pytest

from rlcore.distributed.restarts import run_with_restarts
from rlcore.errors import PlacementError, WorkerDiedError


class Counted:
    """A run over steps that dies where it is planned, and continues from its last checkpoint."""

    def __init__(self, *deaths: int) -> None:
        self.deaths = list(deaths)
        self.steps: list[int] = []
        self.checkpoint = 0
        self.said: list[str] = []

    def start(self, restart: int) -> str:
        for step in range(self.checkpoint, 6):
            if self.deaths and self.deaths[0] == step:
                self.deaths.pop(0)
                raise WorkerDiedError(f"rank 1 at step {step}\nits traceback", role="models", rank=1, pid=7)
            self.steps.append(step)
            self.checkpoint = step + 1 if step % 2 else self.checkpoint
        return f"done after {restart} restarts"

    def run(self, max_restarts: int | None) -> str:
        return run_with_restarts(self.start, max_restarts, self.said.append)


def test_a_run_without_a_death_starts_once() -> None:
    counted = Counted()
    assert counted.run(2) == "done after 0 restarts"
    assert counted.said == []


def test_a_run_starts_again_from_its_checkpoint_and_says_why() -> None:
    counted = Counted(3, 4)
    assert counted.run(2) == "done after 2 restarts"
    assert counted.steps == [0, 1, 2, 2, 3, 4, 5]
    assert counted.said == [
        "restart 1 of 2 from the last checkpoint: WorkerDiedError: rank 1 at step 3",
        "restart 2 of 2 from the last checkpoint: WorkerDiedError: rank 1 at step 4",
    ]


def test_the_last_restart_is_the_last_and_every_cause_is_named() -> None:
    with pytest.raises(PlacementError) as caught:
        Counted(1, 1, 1).run(2)
    cause = "WorkerDiedError: rank 1 at step 1"
    assert caught.value.what == f"workers died 3 times: 1. {cause}; 2. {cause}; 3. {cause}"
    assert isinstance(caught.value.__cause__, WorkerDiedError)


def test_without_restarts_the_death_ends_the_run_as_it_is() -> None:
    counted = Counted(3)
    with pytest.raises(WorkerDiedError, match="rank 1 at step 3"):
        counted.run(None)
    assert counted.steps == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_other_errors_end_the_run(error: type[BaseException]) -> None:
    def start(restart: int) -> None:
        starts.append(restart)
        raise error

    starts: list[int] = []
    with pytest.raises(error):
        run_with_restarts(start, 2, pytest.fail)
    assert starts == [0]
