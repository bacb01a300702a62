"""What a resumed run lost, from lines made by hand: six steps of two weights, one batch of two rows each."""

from dataclasses import replace
from typing import Any

import pytest

from harness.lab.replay.resumption import (
    LossCode,
    NoComparison,
    Record,
    Resumption,
    compare_ranks,
    compare_resumed,
    first_unequal,
    some,
    unrepeated,
)

NUM_STEPS = 6


def line(step: int, **changes: Any) -> dict[str, Any]:
    rows = [f"row {2 * step}", f"row {2 * step + 1}"]
    call = {"inputs": [[".0", f"batch {step}"]], "rows": rows, "random": {"torch": f"state {step}"}, "output": step}
    return {
        "calls": [call],
        "batches": [],
        "losses": [1.0 + step],
        "saves": [{"ema": f"#{step}"}] if step % 3 == 0 and step else [],
        "held": {"mean": f"mean {step}", "Linear.weight": f"target {step // 3}"},
        "random": {"torch": f"state {step}", "numpy": "unused"},
        "seed": None,
        "optimizer": 0,
        "kind": "Adam",
        "names": ["a", "b"],
        "weights": [f"a{step}", f"b{step}"],
        "rounded": {"bfloat16": [f"a{step} rounded", f"b{step} rounded"]},
        "gradients": [f"ga{step}", f"gb{step}"],
        "state": [{"exp_avg": f"#ma{step}", "step": float(step)}, {"exp_avg": f"#mb{step}", "step": float(step)}],
        "trains": [True, True],
        "settings": [{"lr": 0.1 / (step + 1)}],
        "variables": {"seen": 8 * step, "order[0]": step},
        **changes,
    }


STRAIGHT = Record([line(step) for step in range(NUM_STEPS)], {**line(6), "is_tail": True})


def compared(straight: Record, lines: list[dict[str, Any]], unsteady: frozenset[str] = frozenset()) -> Resumption:
    found = compare_resumed(straight, Record(lines), 3, unsteady)
    assert found is not None
    return found


def resumed(at: int = 3, expected: int | None = 3, **changes: Any) -> Resumption:
    """Compare a run that resumes at a step and has these values in its first one."""
    lines = [line(step, **(changes if step == at else {})) for step in range(at, NUM_STEPS)]
    found = compare_resumed(STRAIGHT, Record(lines, {**line(6), "is_tail": True}), expected)
    assert found is not None
    return found


def test_nothing_is_lost() -> None:
    found = resumed()
    assert (found.step, found.num_steps, found.losses, found.hints) == (3, 3, (), ())


HELD = line(3)["held"]
STATES = line(3)["state"]


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"weights": ["a3", "b0"]}, "NOT_RESTORED", "weights are those of step 0, not restored: b"),
        ({"weights": ["a3 rounded", "b3 rounded"]}, "ROUNDED", "weights are rounded to bfloat16: all 2 weights"),
        ({"weights": ["target 1", "b3"]}, "COPIED", "weights are those of others: a has that of Linear.weight"),
        ({"weights": ["a2", "b2"]}, "OF_STEP", "weights are those before step 2: all 2 weights"),
        ({"weights": ["a3", "new"]}, "UNKNOWN", "weights are those of no step: b"),
        (
            {"state": [{}, {}]},
            "LOST",
            "Adam's moments and step count (exp_avg, step) of all 2 weights are lost: they start from nothing",
        ),
        (
            {"state": [STATES[0], {"exp_avg": "0#zeros", "step": 3.0}]},
            "LOST",
            "Adam's moments (exp_avg) of b are lost: they start from nothing",
        ),
        ({"state": [{**STATES[0], "step": 2.0}, STATES[1]]}, "NUMBER", "Adam's step count (step) of a is 2 against 3"),
        (
            {"state": STATES[::-1]},
            "COPIED",
            "Adam's moments (exp_avg) are those of others: a has that of b, b has that of a",
        ),
        (
            {"held": {**HELD, "mean": "mean 0"}},
            "NOT_RESTORED",
            "buffers and weights outside the optimizer are those of step 0, not restored: mean",
        ),
        (
            {"held": {**HELD, "Linear.weight": "a3"}},
            "COPIED",
            "buffers and weights outside the optimizer are those of others: Linear.weight has that of a",
        ),
        ({"trains": [True, False]}, "FROZEN", "frozen weights are trained, or trained ones frozen: b"),
        ({"settings": [{"lr": 0.1}]}, "SETTING", "lr is 0.1 against 0.025, that of step 0"),
        (
            {"losses": [2.0]},
            "SCALE",
            "the loss is 0.5 times the straight run's, and gradients are equal: the gradient scaler was lost",
        ),
        ({"gradients": ["ga3", "x"], "losses": [5.0]}, "LOSS", None),
        (
            {"losses": [5.0]},
            "LOSS",
            "with equal weights and inputs, the loss is 5 against 4, though gradients are equal",
        ),
        ({"saves": [{"ema": "#x"}]}, "CHECKPOINT", None),
        ({"saves": [{"best": "#y"}, {"ema": "#x"}]}, "CHECKPOINT", None),
        ({"calls": line(5)["calls"]}, "DATA_SKIPPED", "the batch is that of step 5: 2 batches skipped"),
        ({"calls": line(2)["calls"]}, "DATA_REPEATED", "the batch is that of step 2: 1 batch repeated"),
        ({"calls": line(0)["calls"]}, "DATA_START_OVER", "the batch is that of step 0: the data start over"),
        ({"calls": line(9)["calls"]}, "DATA_FOREIGN", "2 of 2 samples were in no batch of the straight run"),
    ],
)
def test_a_loss_is_named(changes: dict[str, Any], code: str, sentence: str | None) -> None:
    found = resumed(**changes)
    assert found.step == 3, found.how
    assert found.losses[0].code is LossCode[code]
    assert sentence in (None, found.losses[0].sentence)


def test_weights_alone_do_not_decide_where_a_run_resumed() -> None:
    assert resumed(weights=["a1", "b1"]).how.startswith("its optimizer state, batch or checkpoint say so")
    assert resumed(expected=None).step == 3
    none = compare_resumed(STRAIGHT, Record([line(9)]), None)
    assert none is None, "nothing of it is known"


def test_a_generator_is_a_cause_only_if_something_draws_from_it() -> None:
    unused = {"torch": "state 3", "numpy": "elsewhere"}
    assert not resumed(random=unused).losses
    assert [loss.code.name for loss in resumed(random=unused, gradients=["x", "y"]).losses] == ["LOSS"]
    set_back = resumed(random={"torch": "fresh", "numpy": "unused"}, seed=7, gradients=["x", "y"], losses=[9.0])
    assert [loss.code.name for loss in set_back.losses] == ["GENERATOR", "LOSS"]
    assert set_back.losses[0].sentence == "torch's generator was set back: it stands where manual_seed(7) puts it"
    pool = resumed(random={"torch": "elsewhere", "numpy": "unused"}, calls=line(9)["calls"])
    assert [loss.code.name for loss in pool.losses] == ["DATA_FOREIGN", "GENERATOR"], "fewer to choose from, say"


def test_evaluations_before_the_first_step_lose_nothing() -> None:
    call = {"inputs": [[".0", "evaluation"]], "rows": [], "random": {"torch": "state 3"}, "output": 1}
    assert not resumed(calls=[call, *line(3)["calls"]]).losses


def test_half_an_accumulation_window() -> None:
    calls = [*line(3)["calls"], *line(9)["calls"]]
    straight = Record([line(step, **({"calls": calls} if step == 3 else {})) for step in range(NUM_STEPS)])
    lines = [line(step, **({"calls": calls[1:], "gradients": ["x", "y"]} if step == 3 else {})) for step in (3, 4, 5)]
    found = compared(straight, lines)
    assert found.losses[0].sentence == (
        "the first resumed step is made of 1 of 2 batches: the gradients of the first 1 are lost"
    )
    lines[0] = line(3, calls=calls[1:])
    assert not compared(straight, lines).losses, "its gradients were kept"


def test_an_optimizer_that_holds_its_weights_in_another_order() -> None:
    lines = [
        line(step, names=["b", "a"], weights=[f"b{step}", f"a{step}"], gradients=[f"gb{step}", f"ga{step}"])
        for step in (3, 4, 5)
    ]
    codes = [loss.code.name for loss in compared(STRAIGHT, lines).losses]
    assert codes == ["REORDERED", "COPIED"], "the state stayed in its place"


def test_weights_are_matched_by_their_places_if_names_differ() -> None:
    assert not compared(STRAIGHT, [line(step, names=["x", "y"]) for step in (3, 4, 5)]).losses


def test_variables_are_hints() -> None:
    found = resumed(variables={"seen": 0, "order[0]": 1})
    assert (found.losses, found.hints) == ((), ("seen is 0 against 24, as at step 0",))


def test_what_does_not_repeat_itself_is_not_lost() -> None:
    again = Record([line(0), line(1), line(2), line(3, saves=[{"ema": "#x"}])])
    assert unrepeated(STRAIGHT, again) == {"ema"}
    lines = [line(3, saves=[{"ema": "#y"}]), line(4), line(5)]
    assert not compared(STRAIGHT, lines, frozenset({"ema"})).losses


def test_a_loss_of_one_rank_is_named_before_what_follows_from_it_on_all() -> None:
    rest = [line(4), line(5)]
    moved = line(3, gradients=["other", "gb3"])
    start_over = line(3, gradients=["other", "gb3"], calls=line(0)["calls"])
    both = Record([moved, *rest], {**line(6), "is_tail": True}, others=[Record([start_over, *rest])])
    straight = replace(STRAIGHT, others=[STRAIGHT])
    found = compare_ranks(straight, both, straight, 3)
    assert [(each.code, each.rank) for each in found.losses] == [
        (LossCode.DATA_START_OVER, 1),
        (LossCode.SAMPLES, 1),
        (LossCode.LOSS, 0),
    ]
    assert found.losses[0].sentence == "rank 1: the batch is that of step 0: the data start over"
    with pytest.raises(NoComparison, match="different numbers of ranks"):
        compare_ranks(straight, replace(both, others=()), straight, 3)


def test_two_straight_runs_that_differ() -> None:
    again = [line(0), line(1), line(2, weights=["x", "b2"])]
    assert first_unequal(STRAIGHT, Record(again[:2])) is None
    assert first_unequal(STRAIGHT, Record(again)) == 2
    assert first_unequal(STRAIGHT, Record(again[:2], {**again[2], "is_ended": True})) == 2


def test_names_are_few() -> None:
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert some(["a", "b"], 2) == "all 2 weights"
