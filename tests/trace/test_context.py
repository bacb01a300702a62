"""What steps began with: told as the earliest difference, and never a divergence by itself."""

from pathlib import Path

from harness.trace.diff import diff
from harness.trace.format import RecordedValue, Scope
from harness.trace.resumption import align
from harness.trace.verdict import Context, Kind
from tests.support.traces import Steps, recorded_value, trace, trace_of_ranks


def state(name: str, content: object) -> RecordedValue:
    return recorded_value("rollout", name, content, scope=Scope.CONTEXT)


def steps(first_other: int, sick_from: int = 99) -> Steps:
    """Six steps; the state of random.python is another from one step on, a weight from another one on."""
    return [
        [
            state("random.torch", step),
            state("random.python", (step, step >= first_other)),
            recorded_value("optimizer", "w", (step, step >= sick_from)),
        ]
        for step in range(6)
    ]


def test_a_state_that_differs_is_told_and_does_not_count(tmp_path: Path) -> None:
    a, b = trace(tmp_path / "a", steps(99)), trace(tmp_path / "b", steps(2))
    verdict = diff(a, b)
    assert (verdict.kind, verdict.first, verdict.part) == (Kind.EQUAL, None, None)
    assert verdict.context == Context(("random.python",), 2, 0)
    assert diff(a, a).context == Context(("random.torch", "random.python"))


def test_only_what_came_before_the_divergence_explains_it(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps(99))
    for first_other, told in ((2, 2), (4, 4), (5, None)):
        verdict = diff(a, trace(tmp_path / str(first_other), steps(first_other, sick_from=4)))
        assert verdict.first is not None
        assert verdict.first.a is not None
        assert (verdict.first.step, verdict.first.a.name) == (4, "w")
        assert verdict.context is not None
        assert verdict.context.step == told


def test_a_generator_that_only_one_has_used_is_a_difference(tmp_path: Path) -> None:
    fewer = [
        [each for each in recorded_values if (number, each.name) != (3, "random.torch")]
        for number, recorded_values in enumerate(steps(9))
    ]
    a, b = trace(tmp_path / "a", steps(9)), trace(tmp_path / "b", fewer)
    assert diff(a, b).context == diff(b, a).context == Context(("random.torch",), 3, 0)


def test_the_lowest_rank_is_named(tmp_path: Path) -> None:
    a = trace_of_ranks(tmp_path / "a", [steps(9), steps(9), steps(9)])
    b = trace_of_ranks(tmp_path / "b", [steps(9), steps(3), steps(3)])
    assert diff(a, b).context == Context(("random.python",), 3, 1)


def resumed_steps(restored: int) -> Steps:
    """Three steps from step 3 of `steps` on: a state that is read late stands in the first, so the second has none."""
    weights = [recorded_value("optimizer", "w", (step, False)) for step in (3, 4, 5)]
    return [[state("random.torch", restored), weights[0]], [weights[1]], [state("random.torch", 5), weights[2]]]


def test_of_a_resumed_run_the_states_that_were_recorded_last_count(tmp_path: Path) -> None:
    """Its first step is not compared: its process reads the states before it restores them."""
    whole = [[state("random.torch", step), recorded_value("optimizer", "w", (step, False))] for step in range(6)]
    a = trace(tmp_path / "a", whole)
    for restored, differs_in in ((4, None), (9, 4)):
        part_a, part_b, _ = align(a, trace(tmp_path / str(restored), resumed_steps(restored)), 3)
        verdict = diff(part_a, part_b)
        assert verdict.kind is Kind.EQUAL
        assert verdict.context is not None and verdict.context.step == differs_in
