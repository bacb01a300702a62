"""What only one of two traces records, while the rest is the same."""

from pathlib import Path

from harness.lab.gate.change import Change, equal_but_for
from harness.lab.gate.reasons import Reason, ReasonCode
from harness.lab.gate.recorded import Alone, recorded_alone
from harness.trace.chain import RecordedValue, Scope
from harness.trace.diff import diff
from tests.support.traces import flip_bit, recorded_value, steps_of, trace, trace_of_ranks

Steps = list[list[RecordedValue]]


def with_more(steps: Steps, *names: str, from_step: int = 0) -> Steps:
    return [
        [*step, *(recorded_value("loss", name, number) for name in names)] if number >= from_step else list(step)
        for number, step in enumerate(steps)
    ]


def plain(num_steps: int = 3) -> Steps:
    return [list(step) for step in steps_of(num_steps)]


def test_what_either_records_alone_is_told_once(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", with_more(plain(), "old"))
    b = trace(tmp_path / "b", with_more(plain(), "clip_fraction", "entropy", from_step=1))
    assert recorded_alone(a, b) == Alone(("loss old",), ("loss clip_fraction", "loss entropy"))
    assert recorded_alone(a, a) == Alone((), ())


def test_two_sides_without_a_value_in_common_are_not_comparable(tmp_path: Path) -> None:
    a, b = (trace(tmp_path / name, [[recorded_value("loss", name, 1)]]) for name in ("old", "new"))
    alone = recorded_alone(a, b)
    assert alone == Alone(("loss old",), ("loss new",), has_common=False)
    found = equal_but_for(diff(a, b), alone)
    assert (found.change, found.reasons) == (Change.NOT_COMPARABLE, (Reason(ReasonCode.NOTHING_IN_COMMON),))


def test_whatever_differs_beside_it_is_no_such_thing(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", plain())
    moved = [list(step) for step in steps_of(3, flip_bit(2, "backward", "layers.0.weight"))]
    assert recorded_alone(a, trace(tmp_path / "b", with_more(moved, "more"))) is None
    assert recorded_alone(a, trace(tmp_path / "c", with_more(plain(4), "more"))) is None
    assert recorded_alone(a, trace_of_ranks(tmp_path / "d", [plain(), plain()])) is None


def test_parts_do_not_count(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", plain())
    parts = [[*step, recorded_value("forward", "part", 1, scope=Scope.PHYSICAL)] for step in plain()]
    assert recorded_alone(a, trace(tmp_path / "b", parts)) == Alone((), ())
