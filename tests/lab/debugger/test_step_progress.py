"""Where a run stands within a step, and what it has there beside other runs."""

import pytest

from harness.bits.errors import UsageError
from harness.lab.reproduce.debugger.step_progress import StepProgress, by_key
from harness.recording.stepping_messages import BEGIN, PHASE, Stop
from tests.support.traces import recorded_value

STEP = (
    recorded_value("rollout", "tokens", 1),
    recorded_value("reward", "rewards", 2),
    recorded_value("forward", "logprobs", 3),
    recorded_value("loss", "loss", 4),
    recorded_value("forward", "logprobs", 5, occurrence=1),
    recorded_value("loss", "loss", 6, occurrence=1),
    recorded_value("optimizer", "head", 7),
)


BEFORE_ANOTHER = Stop(PHASE, "x")


def walked(num_values: int, stop: Stop | None = BEFORE_ANOTHER) -> StepProgress:
    walk = StepProgress(7, by_key(STEP))
    walk.take((), Stop(BEGIN, ""))
    walk.take(STEP[:num_values], stop)
    return walk


def test_phases_that_come_again_are_visits_of_their_own() -> None:
    assert [(visit.phase, visit.number, visit.begin, len(visit.values)) for visit in walked(7).visits()] == [
        ("rollout", 0, 0, 1),
        ("reward", 0, 1, 1),
        ("forward", 0, 2, 1),
        ("loss", 0, 3, 1),
        ("forward", 1, 4, 1),
        ("loss", 1, 5, 1),
        ("optimizer", 0, 6, 1),
    ]
    assert [(visit.phase, visit.number) for visit in walked(7).visits(STEP[5:])] == [("loss", 1), ("optimizer", 0)]


@pytest.mark.parametrize(
    ("name", "position"),
    [("tokens", 0), ("logprobs", 4), ("logprobs#0", 2), ("loss/loss", 5), ("loss/loss#0", 3), ("optimizer/head", 6)],
)
def test_a_value_is_found_by_what_people_call_it(name: str, position: int) -> None:
    assert walked(7).find(name) == position


def test_names_of_nothing_and_of_several_are_refused() -> None:
    with pytest.raises(UsageError, match="logprobs"):
        walked(7).find("logprob")
    with pytest.raises(UsageError, match="is recorded so far"):
        walked(2).find("head")
    walk = walked(7)
    walk.values.append(recorded_value("backward", "head", 8))
    with pytest.raises(UsageError, match="backward/head, optimizer/head"):
        walk.find("head")
