"""What the step debugger says."""

import json
from collections.abc import Callable

from harness.lab.reproduce.debugger.answers import Answer, Compared, Listed, Marked, Paused, Shown
from harness.lab.reproduce.debugger.step_progress import Mark, StepProgress, Visit
from harness.recording.stepping_messages import BEGIN, END, PHASE, VALUE, Stop
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


def test_the_prompt_names_the_position() -> None:
    walk = StepProgress(7, {})
    told = []
    for recorded_values, stop in (
        ((), Stop(BEGIN, "")),
        ((REWARDS,), Stop(PHASE, "advantage")),
        ((HEAD,), Stop(VALUE, "")),
        ((), Stop(END, "")),
        ((), None),
    ):
        walk.take(recorded_values, stop)
        told.append(prompt_text(walk))
    places = ("beginning", "before advantage", "after backward head", "end", "ended")
    assert told == [f"(step 7, {place}) " for place in places]


SMALL = HEAD._replace(shape=(2,))
OTHER = SMALL._replace(digest=bytes(16))
ALL = (range(2),)
DIFFERENCE = compare("f32", bytes(8), bytes(4) + b"\x01\0\0\0")
VISITS = (
    visit(Mark.EQUAL, Mark.EQUAL, other=Mark.EQUAL),
    visit(Mark.EQUAL, Mark.DIFFERENT, number=2),
    visit(Mark.ABSENT),
    visit(Mark.ABSENT, Mark.EQUAL),
)
BYTES = Compared(SMALL, OTHER, "gb", is_equal=False, ranges=ALL, difference=compare("own", bytes(8), b"\x01" * 8))
RANGE = {"min": -1.0, "max": 0.5, "mean": 0.1, "nan": 0, "inf": 2}
ANSWERS: dict[str, Answer] = {
    "a stop": Paused(7, PHASE, "optimizer", HEAD, VISITS, ("a note",)),
    "the end of a step": Paused(7, END, "", HEAD, ()),
    "the beginning of a step": Paused(7, BEGIN, "", None, ()),
    "the end of the process": Paused(7, "", "", HEAD, (), ("it has ended",)),
    "a list": Listed((visit(Mark.EQUAL, Mark.DIFFERENT, other=Mark.ABSENT),), "gb"),
    "an empty list": Listed((), ""),
    "a value": Shown(HEAD, "[0:2]", (2, 32), RANGE, "tensor([1.,\n  2.])", is_as_recorded=False),
    "a difference": Compared(SMALL, OTHER, "gb", is_equal=False, ranges=ALL, difference=DIFFERENCE),
    "a difference in a slice": Compared(
        SMALL, OTHER, "gb", is_equal=False, part="[:, 4:]", ranges=(range(1), range(4, 6)), difference=DIFFERENCE
    ),
    "a difference of bytes": BYTES,
    "no difference": Compared(SMALL, SMALL, "gb", is_equal=True),
    "no such value": Compared(SMALL, None, "gb", is_equal=False),
    "another shape": Compared(SMALL, OTHER._replace(shape=(3,)), "gb", is_equal=False),
    "an unknown difference": Compared(SMALL, OTHER, "gb", is_equal=False, why_unknown="so"),
}


def test_the_texts_are_the_golden(golden: Callable[[str, str], None]) -> None:
    golden("debugger.txt", "\n".join("\n".join([title, *said(each), ""]) for title, each in ANSWERS.items()))


def test_of_a_long_list_what_differs_is_never_left_out() -> None:
    lines = said(Listed((visit(*[Mark.EQUAL] * 60, Mark.DIFFERENT),), ""))
    assert lines[-2].split()[:2] == ["!", "w60"]
    assert lines[-1] == f"  and {61 - MAX_LISTED} values more"
