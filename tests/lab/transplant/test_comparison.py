"""What came of a transplant, from traces that are written by hand."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.lab.transplant.comparison import WEIGHTS, Distance, Effect, Outcome, Where, compare_transplants
from harness.lab.transplant.patches import Patch, parse_patch
from harness.recording.patch_report import Fate, Transplanted
from harness.trace.manifest import Manifest
from harness.trace.reader import Trace, read_trace
from harness.trace.tensor_file import Kept
from harness.trace.values import Float
from harness.trace.writer import TraceWriter
from tests.support.traces import manifest_of, recorded_value, trace_of_values, value

PHASES = ("rollout", "reward", "advantage", "backward", "optimizer")
Whose = Callable[[int, str], str]
"""Step and phase -> whose bits that leaf has."""


def trace(directory: Path, whose: Whose, rewards: Callable[[int], float] = float) -> Trace:
    """Four steps of a leaf a phase, and a curve."""
    manifest: Manifest = manifest_of()
    with TraceWriter(directory, manifest, say=print) as writer:
        for step in range(4):
            writer.append(step, [recorded_value(phase, "x", (whose(step, phase), step, phase)) for phase in PHASES])
            writer.log_values(
                {"reward_mean": Float.of(rewards(step)), "seconds": Float.of(step * 2.0 + ord(directory.name[0]))}
            )
    return read_trace(directory)


def whose_a(step: int, phase: str) -> str:
    return "a"


def whose_b(step: int, phase: str) -> str:
    """From step 1 on another reward function, and all that follows from it."""
    return "b" if (step, PHASES.index(phase)) >= (1, 1) else "a"


def put(*steps: int, phase: str = "advantage", fate: Fate = Fate.PUT, why: str = "") -> list[Transplanted]:
    return [Transplanted(step, phase, "x", 0, fate, why) for step in steps]


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., Outcome]:
    a = trace(tmp_path / "a", whose_a)
    b = trace(tmp_path / "b", whose_b, lambda step: step + 1.0)

    def judge_made(
        whose: Whose,
        report: list[Transplanted],
        *,
        rewards: Callable[[int], float] = float,
        problem: str = "",
        take: str = "advantages",
    ) -> Outcome:
        made = trace(tmp_path / "made", whose, rewards)
        patch = Patch(parse_patch(take), 1, max((each.step for each in report), default=1))
        return compare_transplants(patch, made, a, b, report=report, problem=problem)

    return judge_made


def test_what_follows_is_bs_though_what_came_before_stays_as(judged: Callable[..., Outcome]) -> None:
    """The rewards are still those of A's function, in every step: they moved nothing."""
    found = judged(lambda step, phase: "a" if phase == "reward" else whose_b(step, phase), put(1, 2, 3))
    assert (found.effect, found.num_put, found.before) == (Effect.BECOMES_B, 3, ("reward x",))
    assert (found.from_b, found.from_a) == (None, Where(1, "backward", "x", 0))
    assert (found.num_reached, found.num_apart) == (found.num_apart, 2 + 3 + 3)


def test_what_parts_from_b_later_is_not_b(judged: Callable[..., Outcome]) -> None:
    found = judged(
        lambda step, phase: "a" if phase == "reward" else "c" if step == 3 else whose_b(step, phase), put(1, 2, 3)
    )
    assert (found.effect, found.from_b) == (Effect.MOVES, Where(3, "rollout", "x", 0))


def test_once_is_not_enough_where_a_goes_its_own_way_again(judged: Callable[..., Outcome]) -> None:
    found = judged(lambda step, phase: whose_b(step, phase) if step == 1 and phase != "reward" else "a", put(1))
    assert (found.effect, found.from_b) == (Effect.MOVES, Where(2, "rollout", "x", 0))


def test_nothing_follows_from_a_copy(judged: Callable[..., Outcome]) -> None:
    found = judged(lambda step, phase: "b" if phase == "advantage" and step else "a", put(1, 2, 3))
    assert (found.effect, found.from_a, found.num_reached) == (Effect.NOTHING, None, 0)


@pytest.mark.parametrize(
    ("report", "effect", "problem"),
    [
        (put(1, 2, fate=Fate.EQUAL), Effect.SAME_ALREADY, ""),
        (put(1, fate=Fate.UNLIKE, why="other shape"), Effect.DOES_NOT_FIT, "advantage x at step 1: other shape"),
        (put(1, fate=Fate.NO_MEMORY, why="a text"), Effect.DOES_NOT_FIT, "advantage x at step 1: a text"),
        ([], Effect.DOES_NOT_FIT, "A did not record such a value"),
    ],
)
def test_what_was_not_put_proves_nothing(
    judged: Callable[..., Outcome], report: list[Transplanted], effect: Effect, problem: str
) -> None:
    found = judged(whose_b, report)
    assert (found.effect, found.problem) == (effect, problem)


def test_a_run_that_failed_proves_nothing(judged: Callable[..., Outcome]) -> None:
    found = judged(whose_b, put(1), problem="the program ended with exit code 1")
    assert (found.effect, found.problem) == (Effect.FAILED, "the program ended with exit code 1")


def test_the_way_of_the_curve_is_measured_and_costs_are_none(judged: Callable[..., Outcome]) -> None:
    found = judged(whose_a, put(1, 2, 3), rewards=lambda step: step + 0.75)
    (distance,) = found.distances
    assert distance == Distance("reward_mean", size=4.0, a_to_b=1.0, to_a=0.75, to_b=0.25)
    assert distance.share == 0.75


def test_weights_count_from_the_step_that_begins_with_them(judged: Callable[..., Outcome]) -> None:
    """The step that made them had A's rewards still."""
    found = judged(whose_a, put(1), rewards=lambda step: step + (step > 1), take="weights")
    assert [distance.to_b for distance in found.distances] == [0.0]


@pytest.mark.parametrize("keeps", [True, False])
def test_the_way_of_weights_is_that_of_all_of_them_or_not_told(tmp_path: Path, keeps: bool) -> None:
    """The small one stands in its leaf; without the other nobody knows how far they went."""

    def written(name: str, small: float, large: float) -> Trace:
        values = [
            f32("advantage", "x", small),
            f32("optimizer", "small", small),
            f32("optimizer", "large", *[large] * 9),
        ]
        return trace_of_values(tmp_path / name, [values], keeps=keeps)

    made, a, b = written("made", 1.5, 4.0), written("a", 1.0, 2.0), written("b", 2.0, 6.0)
    found = compare_transplants(Patch(parse_patch("advantages"), 0, 0), made, a, b, report=put(0))
    expected = [Distance(WEIGHTS, size=6.0, a_to_b=4.0, to_a=2.0, to_b=2.0)] if keeps else []
    assert list(found.distances) == expected


def f32(phase: str, name: str, *values: float) -> Kept:
    return value(phase, name, "f32", (len(values),), struct.pack(f"<{len(values)}f", *values))


def outcome(*distances: Distance, effect: Effect = Effect.MOVES) -> Outcome:
    return Outcome(Patch(parse_patch("loss"), 1, 3), "", effect, distances=distances)


def test_of_all_values_the_one_counts_that_came_least_of_the_way_but_not_one_of_rounding() -> None:
    near, far = Distance("near", 1.0, 1.0, 1.0, 0.01), Distance("far", 1.0, 1.0, 0.2, 0.8)
    rounding = Distance("rounding", 1.0, 1e-7, 1e-7, 3e-7)
    assert outcome(near, far, rounding).distance == far
    assert outcome(rounding).distance == rounding
    assert not outcome(near, far).is_near
    assert outcome(near, rounding).is_near
    assert not outcome(near, effect=Effect.NOTHING).is_near
    assert outcome().distance is None
