"""The rows of faults: each fits the engine as it is, and is taken back; and what is made of findings."""

import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.trace.reader import read_trace
from rlcore.algorithms import schedules
from rlcore.config import read_config
from tests.guards.faults import MEANS, drawn, problem
from tests.guards.planted.fault import FAULTS, PLACES, Deeds, Fault, StaleError, changes, named, planted
from tests.guards.planted.perturbations import SINGLE, TOGETHER
from tests.guards.planted.perturbations import drawn as drawn_perturbation
from tests.guards.planted.settings import DIFFERENCES, payload
from tests.guards.planted.trials import CHAOS, ENGINE, GATE, NOTHING, REPLAY, Finding, differing, steps_from
from tests.guards.planted.workers import Run
from tests.support.traces import flip_bit, manifest_of, steps_of, write

THREAD = re.compile(r"^[\w./-]+ #\d+$")
FAULT = named("prompts_of_a_set")
HARMLESS = replace(FAULT, is_harmless=True)
FOUND = Finding(FAULT, GATE, "the honest engine", ("rollout",), "prompt_ids", 2)


# --------------------------------------------------------------------------------------------------------------- rows


def stale(fault: Fault) -> str:
    """Return why a row does not fit the engine; empty if it does."""
    try:
        changes(fault)
    except StaleError as error:
        return str(error)
    return ""


def test_every_row_fits_the_engine_as_it_is() -> None:
    """A row that is named here needs the text that stands in its file now."""
    assert [text for fault in (named("no_receipts"), *FAULTS) if (text := stale(fault))] == []


def test_every_row_says_what_it_is() -> None:
    assert sum(bool(THREAD.match(fault.source)) for fault in FAULTS) >= 70
    for fault in FAULTS:
        assert fault.source
        assert 10 < len(fault.about) < 90
        assert fault.finder in MEANS
        assert fault.phases
        assert set(fault.phases) <= set(PLACES)
        assert fault.setting in DIFFERENCES
    unseen = {"entropy_of_means", "evaluation_of_the_best", "loss_of_the_first", "uniforms_of_24_bits"}
    assert {each.name for each in FAULTS if each.finder == NOTHING and not each.is_harmless} == unseen


def test_the_dozen_is_found_by_several_means() -> None:
    assert drawn() == drawn()
    assert len({fault.finder for fault in drawn()}) >= 3


@pytest.mark.parametrize("setting", DIFFERENCES)
def test_settings_are_legal_and_tiny(setting: str) -> None:
    config = read_config(payload(setting))
    assert config.training.num_steps in (5, 7, 60)
    assert config.model.width <= 96


def test_a_name_that_is_misspelt_names_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean prompts_of_a_set"):
        named("prompts_of_set")


def edited(old: str, new: str, file: str = "rlcore/algorithms/schedules.py") -> Fault:
    old, new = (textwrap.dedent(text).strip("\n") for text in (old, new))
    return replace(FAULT, name="it", edits=({"in": file, "old": old, "new": new},))


def test_a_planted_text_runs_wherever_the_function_was_imported_and_is_taken_back() -> None:
    fault = edited(
        """
        return peak
        """,
        """
        for FAULT.step in range(3):
            FAULT.held[step] = FAULT.step
        return 2 * peak
        """,
    )
    constant_lr, deeds = schedules.constant_lr, Deeds()
    before = vars(schedules).copy(), constant_lr.__code__
    with pytest.raises(ZeroDivisionError), planted(fault, deeds):
        assert constant_lr(7, peak=0.5, num_warmup_steps=16) == 0.5
        assert (deeds.step, deeds.held) == (2, {7: 2})
        raise ZeroDivisionError
    assert (vars(schedules), constant_lr.__code__) == before
    assert constant_lr(7, peak=0.5, num_warmup_steps=16) == 0.25


def test_a_text_lies_under_decorators_and_in_classes() -> None:
    fault = replace(
        FAULT,
        edits=(
            {
                "in": "rlcore/determinism.py",
                "old": 'if level == "invariant":\n    shapes',
                "new": 'if level == "off":\n    shapes',
            },
        ),
    )
    assert list(changes(fault)["rlcore/determinism.py"]) == ["at_level"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("no such text", "", "0 times"),
        ("return", "return 0 *", r"\d+ times"),
        ("import math", "import math as m", "elsewhere than in bodies"),
        ("peak: float, num_warmup_steps: int = 0", "peak: float, num_warmup_steps: int = 1", "elsewhere"),
        ("else peak", "else peak  # so", "not at all"),
        ("return 1.0 if step >= num_steps", "return 1.0 if step >=: num_steps", "no Python"),
    ],
)
def test_a_row_that_does_not_fit_says_why(old: str, new: str, said: str) -> None:
    assert re.search(said, stale(edited(old, new)))
    assert "there is no rlcore/none.py" in stale(edited(old, new, "rlcore/none.py"))


# ----------------------------------------------------------------------------------------------------------- findings


def finding(**other: Any) -> Finding:
    return replace(FOUND, **other)


@pytest.mark.parametrize(
    ("frozen", "found", "is_red"),
    [
        (ENGINE, {"check": ENGINE}, False),
        (CHAOS, {"check": ENGINE}, False),
        (CHAOS, {"check": REPLAY}, False),
        (ENGINE, {"check": REPLAY}, True),
        (REPLAY, {"check": CHAOS}, True),
        (CHAOS, {"check": GATE}, True),
        (GATE, {"check": NOTHING, "is_reached": True}, True),
        (NOTHING, {"check": NOTHING, "is_reached": True}, False),
        (NOTHING, {"check": GATE}, False),
        (NOTHING, {"check": NOTHING, "is_reached": False}, True),
        (ENGINE, {"check": ENGINE, "how": "broken: TypeError"}, True),
        (CHAOS, {"check": CHAOS, "how": "replicas: hung: "}, True),
        (NOTHING, {"check": NOTHING, "is_reached": True, "fault": HARMLESS}, False),
        (NOTHING, {"check": CHAOS, "fault": HARMLESS}, True),
    ],
)
def test_a_fault_that_is_found_later_than_frozen_is_red(frozen: str, found: dict[str, Any], is_red: bool) -> None:
    found["fault"] = replace(found.get("fault", FAULT), finder=frozen)
    assert bool(problem(finding(**found))) is is_red


@pytest.mark.parametrize(
    ("name", "phases", "leaf", "is_localised"),
    [
        ("stale_prefix_cache", ("forward",), "policy", True),
        ("stale_prefix_cache", ("rollout", "loss"), "", True),
        ("stale_prefix_cache", ("optimizer",), "policy.embedding", False),
        ("stale_prefix_cache", (), "", False),
        ("prompts_of_a_set", ("rollout",), "prompt_ids", True),
        ("prompts_of_a_set", ("rollout",), "weights_digest", False),
        ("prompts_of_a_set", ("rollout",), "", True),
    ],
)
def test_a_place_is_right_where_phase_and_leaf_are(
    name: str, phases: tuple[str, ...], leaf: str, is_localised: bool
) -> None:
    assert finding(fault=named(name), phases=phases, leaf=leaf).is_localised is is_localised


def test_a_fault_on_which_no_bit_depends_is_right_where_nothing_is_found() -> None:
    assert finding(fault=HARMLESS, check=NOTHING, phases=()).is_localised
    assert not finding(fault=HARMLESS).is_localised


def run(trace: Path, end: str = "whole", **fields: Any) -> Run:
    return Run(trace, end, **fields)


def test_runs_that_are_alike_are_no_alarm_and_others_are(tmp_path: Path) -> None:
    a = run(write(tmp_path / "a" / "trace", steps_of(4)))
    same = run(write(tmp_path / "b" / "trace", steps_of(4)))
    other = run(write(tmp_path / "c" / "trace", steps_of(4, flip_bit(2, "backward", "layers.0.weight"))))
    assert differing(a, [same], tmp_path) == ""
    assert differing(a, [other], tmp_path).startswith("perturbed: step 2, backward layers.0.weight")
    assert differing(a, [run(same.trace, "refused", error="StepError", what="it")], tmp_path) == "StepError: it"
    assert differing(a, [run(same.trace, "hung")], tmp_path).startswith("hung")
    of_another = run(write(tmp_path / "d" / "trace", steps_of(4), manifest_of(identity={"seed": "8"})))
    assert (
        differing(a, [of_another], tmp_path) == "perturbed: the configuration or the command differs (identity): seed"
    )


def test_a_run_that_goes_on_is_compared_with_the_later_steps(tmp_path: Path) -> None:
    whole = read_trace(write(tmp_path / "a" / "trace", steps_of(5)))
    later = read_trace(steps_from(whole, 3, tmp_path))
    assert later.steps == (3, 4)
    assert later.gaps == ()
    assert [later.ranks[0].heads[step].root for step in (3, 4)] == [whole.ranks[0].heads[step].root for step in (3, 4)]


def test_drawn_perturbations_are_always_the_same_and_some_crash() -> None:
    pairs = [drawn_perturbation(seed) for seed in range(100)]
    assert pairs == [drawn_perturbation(seed) for seed in range(100)]
    assert len({str(each) for each in pairs}) > 90
    assert 5 < sum(each.crashes for each in pairs) < 40
    assert set(TOGETHER.values) == {name for each in SINGLE for name in each.values}
