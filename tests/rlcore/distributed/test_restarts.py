"""Restarts after a worker's death, with stand-in runs."""

from collections.abc import Callable

import pytest

from rlcore.distributed.restarts import RestartPolicy, run_with_restarts
from rlcore.errors import InvalidValueError, PlacementError


class Died(Exception):
    """A worker's death."""


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
                raise Died(f"rank 1 at step {step}\nits traceback")
            self.steps.append(step)
            self.checkpoint = step + 1 if step % 2 else self.checkpoint
        return f"done after {restart} restarts"

    def run(self, policy: RestartPolicy) -> str:
        return run_with_restarts(self.start, policy, deaths=(Died,), say=self.said.append)


RESTART = RestartPolicy("restart", max_restarts=2)


def test_a_run_without_a_death_starts_once() -> None:
    counted = Counted()
    assert counted.run(RESTART) == "done after 0 restarts"
    assert counted.said == []


def test_a_run_starts_again_from_its_checkpoint_and_says_why() -> None:
    counted = Counted(3, 4)
    assert counted.run(RESTART) == "done after 2 restarts"
    assert counted.steps == [0, 1, 2, 2, 3, 4, 5]
    assert counted.said == [
        "restart 1 of 2 from the last checkpoint: Died: rank 1 at step 3",
        "restart 2 of 2 from the last checkpoint: Died: rank 1 at step 4",
    ]


def test_the_last_restart_is_the_last_and_every_cause_is_named() -> None:
    with pytest.raises(PlacementError) as caught:
        Counted(1, 1, 1).run(RESTART)
    assert caught.value.what == (
        "workers died 3 times: 1. Died: rank 1 at step 1; 2. Died: rank 1 at step 1; 3. Died: rank 1 at step 1"
    )
    assert isinstance(caught.value.__cause__, Died)


def test_under_the_policy_fail_the_death_ends_the_run_as_it_is() -> None:
    counted = Counted(3)
    with pytest.raises(Died, match="rank 1 at step 3"):
        counted.run(RestartPolicy())
    assert counted.steps == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_other_errors_end_the_run(error: type[BaseException]) -> None:
    def start(restart: int) -> None:
        starts.append(restart)
        raise error

    starts: list[int] = []
    with pytest.raises(error):
        run_with_restarts(start, RESTART, deaths=(Died,), say=pytest.fail)
    assert starts == [0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RestartPolicy("retry"),  # type: ignore[arg-type]
        lambda: RestartPolicy("restart", max_restarts=-1),
    ],
    ids=["name", "number"],
)
def test_policies_that_cannot_be_are_refused(make: Callable[[], RestartPolicy]) -> None:
    with pytest.raises(InvalidValueError):
        make()
