"""What the step debugger says."""

import json
from dataclasses import replace

from harness.lab.reproduce.debugger.answers import Answer, Compared, Listed, Marked, Message, Paused, Shown
from harness.lab.reproduce.debugger.step_progress import Mark, StepProgress, Visit
from harness.recording.stepping_messages import BEGIN, END, LEAF, PHASE, Stop
from harness.render.interactive import MAX_LISTED, answer_json, answer_text, prompt_text
from harness.trace.element_diff import compare
from tests.support.traces import recorded_value

HEAD, REWARDS = recorded_value("backward", "head", 1), recorded_value("reward", "rewards", 2)


def said(answer: Answer, *, colour: bool = False) -> list[str]:
    assert json.dumps(answer_json(answer)), "plain values only"
    return answer_text(answer, colour=colour).splitlines()


def visit(*marks: Mark, other: Mark | None = None, number: int = 0) -> tuple[Visit, tuple[Marked, ...]]:
    recorded_values = tuple(HEAD._replace(name=f"w{at}") for at in range(len(marks)))
    marked = tuple(Marked(each, mark, other) for each, mark in zip(recorded_values, marks, strict=True))
    return Visit("backward", number, 0, recorded_values), marked


def test_the_prompt_says_where_somebody_stands() -> None:
    walk = StepProgress(7, {})
    told = []
    for recorded_values, stop in (
        ((), Stop(BEGIN, "")),
        ((REWARDS,), Stop(PHASE, "advantage")),
        ((HEAD,), Stop(LEAF, "")),
        ((), Stop(END, "")),
        ((), None),
    ):
        walk.take(recorded_values, stop)
        told.append(prompt_text(walk))
    places = ("beginning", "before advantage", "behind backward head", "end", "ended")
    assert told == [f"(step 7, {place}) " for place in places]


def test_a_stop_sums_up_what_was_recorded_on_the_way() -> None:
    alike = visit(Mark.EQUAL, Mark.EQUAL, other=Mark.EQUAL)
    unlike = visit(Mark.EQUAL, Mark.DIFFERENT, number=2)
    unknown, some = visit(Mark.ABSENT), visit(Mark.ABSENT, Mark.EQUAL)
    stood = Paused(7, PHASE, "optimizer", HEAD, (alike, unlike, unknown, some), ("a note",))
    assert said(stood) == [
        "  backward      2 values: as recorded; as in the other run",
        "  backward #2   2 values: 1 NOT as recorded, first w1",
        "  backward      1 value: nothing to compare with recorded",
        "  backward      2 values: 1 as recorded, 1 not there",
        "before optimizer",
        "  a note",
    ]
    assert "\x1b[1;31m1 NOT as recorded, first w1\x1b[0m" in said(stood, colour=True)[1]
    assert said(Paused(7, END, "", HEAD, ())) == ["step 7 has come to its end"]
    assert said(Paused(7, BEGIN, "", None, ())) == ["at the beginning of step 7"]
    assert said(Paused(7, "", "", HEAD, (), ("it has ended",))) == ["  it has ended"]


def test_a_list_marks_each_value() -> None:
    lines = said(Listed((visit(Mark.EQUAL, Mark.DIFFERENT, other=Mark.ABSENT),), "gb"))
    assert lines == [
        "= as recorded, ! not, ? not there; second mark: as in gb",
        "backward",
        "  = ?  w0  f32 [64, 32]",
        "  ! ?  w1  f32 [64, 32]",
    ]
    assert said(Listed((), "")) == ["nothing was recorded so far"]


def test_of_a_long_list_what_differs_is_never_left_out() -> None:
    lines = said(Listed((visit(*[Mark.EQUAL] * 60, Mark.DIFFERENT),), ""))
    assert lines[-2].split()[:2] == ["!", "w60"]
    assert lines[-1] == f"  and {61 - MAX_LISTED} values more"


def test_a_value_is_shown_with_its_range() -> None:
    told = {"min": -1.0, "max": 0.5, "mean": 0.1, "nan": 0, "inf": 2}
    shown = Shown(HEAD, "[0:2]", (2, 32), told, "tensor([1.,\n  2.])", is_as_recorded=False)
    assert said(shown) == [
        "backward head  f32 [64, 32] [0:2] [2, 32]",
        "  min -1, max 0.5, mean 0.1, 0 NaN, 2 infinite",
        "  tensor([1.,",
        "    2.])",
        "  the program has written to it since it was recorded: this is what it holds now",
    ]


def test_two_values_are_told_apart_by_element() -> None:
    value = compare("f32", bytes(8), bytes(4) + b"\x01\0\0\0")
    small = HEAD._replace(shape=(2,))
    other = small._replace(digest=bytes(16))
    whole = (range(2),)
    assert said(Compared(small, other, "gb", is_equal=False, ranges=whole, difference=value))[1:] == [
        "  DIFFERENT in 1 of 2 elements, by at most 1 ulp (1.4e-45)",
        "  the first, [1]: here 0.0, there 1.4013e-45",
    ]
    behind = replace(Compared(small, other, "gb", is_equal=False, part="[:, 4:]"), ranges=(range(1), range(4, 6)))
    assert said(replace(behind, difference=value)) == [
        "backward head  f32 [2] [:, 4:], beside that of gb",
        "  DIFFERENT in 1 of 2 elements, by at most 1 ulp (1.4e-45)",
        "  the first, [0, 5]: here 0.0, there 1.4013e-45",
    ]
    bytewise = Compared(
        small, other, "gb", is_equal=False, ranges=whole, difference=compare("own", bytes(8), b"\x01" * 8)
    )
    assert said(bytewise)[2].startswith("  the first, 0: here "), "of bytes nobody knows to which element they belong"
    assert said(Compared(small, small, "gb", is_equal=True))[1:] == ["  equal, every bit"]
    assert said(Compared(small, None, "gb", is_equal=False))[1:] == ["  it has no such value"]
    assert said(Compared(small, other._replace(shape=(3,)), "gb", is_equal=False))[1:] == [
        "  here f32 [2], there f32 [3]"
    ]
    assert said(Compared(small, other, "gb", is_equal=False, why_unknown="so"))[1:] == [
        "  DIFFERENT; by how much is not known: so"
    ]


def test_lines_are_told_as_they_are() -> None:
    assert said(Message(("one", "two"), is_refused=True)) == ["one", "two"]
