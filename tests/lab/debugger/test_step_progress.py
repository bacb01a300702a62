"""Where a run stands within a step, and what it has there beside other runs."""

import pytest

from harness.core.errors import UsageError
from harness.lab.reproduce.debugger.step_progress import Mark, StepProgress, by_key, first_other
from harness.recording.stepping_messages import BEGIN, END, PHASE, Stop
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


@pytest.mark.parametrize(("num_values", "position"), [(0, 0), (1, 0), (2, 1), (4, 3), (7, 6)])
def test_back_is_where_the_phase_of_the_last_value_began(num_values: int, position: int) -> None:
    assert walked(num_values).position_back() == position


def test_it_ends_with_its_step_or_its_process() -> None:
    assert walked(7, Stop(END, "")).has_ended
    gone = walked(3, None)
    assert (gone.why, gone.phase, gone.has_ended) == ("", "", False)


def test_a_value_is_marked_by_what_other_runs_have() -> None:
    other = [STEP[0]._replace(digest=bytes(16)), STEP[1]]
    walk = StepProgress(7, by_key(STEP[:1]), by_key(other))
    assert [walk.mark(each) for each in STEP[:2]] == [Mark.EQUAL, Mark.ABSENT]
    assert [walk.mark_of_other(each) for each in STEP[:3]] == [Mark.DIFFERENT, Mark.EQUAL, Mark.ABSENT]
    assert walked(1).mark_of_other(STEP[0]) is None


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


def test_what_does_not_come_out_again_is_named() -> None:
    assert first_other(STEP, STEP[:3]) is None
    assert first_other(STEP[:3], (*STEP[:2], STEP[6])) == STEP[2]
