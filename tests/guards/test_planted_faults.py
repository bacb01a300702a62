"""The catalogue of faults: each fits the engine as it is, leaves nothing behind, and is in the frozen file."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.trace.reader import read_trace
from rlcore.config import read_config
from tests.guards.faults import FROZEN, MEANS, drawn, problem
from tests.guards.planted import faults
from tests.guards.planted.catalogue import FAULTS, named
from tests.guards.planted.fault import PLACES, Fault, Probe, honest, replaced
from tests.guards.planted.perturbations import SINGLE, TOGETHER
from tests.guards.planted.perturbations import drawn as drawn_perturbation
from tests.guards.planted.settings import DIFFERENCES, payload
from tests.guards.planted.trials import CHAOS, ENGINE, GATE, NOTHING, REPLAY, Finding, differing, soonest, steps_from
from tests.guards.planted.workers import Run
from tests.support.traces import flip_bit, manifest_of, steps_of, write

MODULES = [importlib.import_module(f"{faults.__name__}.{each.name}") for each in pkgutil.iter_modules(faults.__path__)]
THREAD = re.compile(r"^[\w./-]+ #\d+$")
HARMLESS = replace(named("kl_sign"), is_harmless=True)
FOUND = Finding(named("kl_sign"), GATE, "the honest engine", ("loss",), "policy", 2, 0, num_reached=4, num_runs=5)


# ---------------------------------------------------------------------------------------------------------- catalogue


def test_the_frozen_file_has_every_fault_in_the_order_of_the_catalogue() -> None:
    assert list(FROZEN) == [fault.name for fault in FAULTS]
    assert set(FROZEN.values()) <= set(MEANS)
    assert {name for name, means in FROZEN.items() if means == NOTHING} == {
        "evaluation_of_the_best",
        *(fault.name for fault in FAULTS if fault.is_harmless),
    }


def test_every_fault_of_a_module_is_in_the_catalogue_and_says_what_it_is() -> None:
    assert {each.name for module in MODULES for each in vars(module).values() if isinstance(each, Fault)} == set(FROZEN)
    assert sum(bool(THREAD.match(fault.source)) for fault in FAULTS) >= 70
    for fault in FAULTS:
        assert fault.source
        assert 10 < len(fault.about) < 90
        assert fault.phases
        assert set(fault.phases) <= set(PLACES)
        assert fault.setting in DIFFERENCES


def test_the_dozen_is_found_by_several_means() -> None:
    assert drawn() == drawn()
    assert len({FROZEN[fault.name] for fault in drawn()}) >= 3


@pytest.mark.parametrize("setting", DIFFERENCES)
def test_settings_are_legal_and_tiny(setting: str) -> None:
    config = read_config(payload(setting))
    assert config.training.num_steps in (5, 7, 60)
    assert config.model.width <= 96


@pytest.mark.full
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_is_patched_is_there_and_is_put_back(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    targets: dict[str, Any] = {}

    @contextmanager
    def watched(target: str, value: Any) -> Iterator[None]:
        targets.setdefault(target, honest(target))
        assert value is not honest(target)
        with replaced(target, value):
            yield

    for module in MODULES:
        if hasattr(module, "replaced"):
            monkeypatch.setattr(module, "replaced", watched)
    with fault.install(Probe()):
        assert targets, "it patches something"
        assert all(honest(target) is not before for target, before in targets.items())
    assert all(honest(target) is before for target, before in targets.items())


def test_a_patch_of_what_is_not_there_is_an_error() -> None:
    with pytest.raises(AttributeError), replaced("rlcore.recipes.grpo:no_such_name", None):
        pytest.fail("it was entered")


def test_a_patch_is_undone_after_an_error() -> None:
    before = honest("rlcore.recipes.grpo:grpo_step")
    with pytest.raises(ZeroDivisionError), replaced("rlcore.recipes.grpo:grpo_step", None):
        raise ZeroDivisionError
    assert honest("rlcore.recipes.grpo:grpo_step") is before


def test_a_fault_that_is_misspelt_names_the_nearest() -> None:
    assert named("kl_sign").name == "kl_sign"
    with pytest.raises(KeyError, match="did you mean kl_sign"):
        named("kl_sing")


def test_a_probe_reports_the_first_step_that_differs() -> None:
    probe = Probe()
    probe.begin(3)
    probe.reached(has_effect=False)
    probe.end()
    probe.reached()
    probe.begin(4)
    probe.reached()
    assert (probe.num_reached, probe.first_effect, probe.step) == (3, 4, 4)


def test_what_is_done_before_the_first_step_has_its_effect_there() -> None:
    probe = Probe()
    probe.reached()
    assert probe.first_effect is None
    probe.begin(2)
    assert probe.first_effect == 2
    idle = Probe()
    idle.reached(has_effect=False)
    idle.begin(2)
    assert (idle.num_reached, idle.first_effect) == (1, None)


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
        (GATE, {"check": NOTHING}, True),
        (NOTHING, {"check": NOTHING}, False),
        (NOTHING, {"check": GATE}, False),
        (ENGINE, {"check": ENGINE, "num_reached": 0}, True),
        (ENGINE, {"check": ENGINE, "how": "broken: TypeError"}, True),
        (CHAOS, {"check": CHAOS, "how": "replicas: hung: "}, True),
        (NOTHING, {"check": NOTHING, "fault": HARMLESS}, False),
        (NOTHING, {"check": CHAOS, "fault": HARMLESS}, True),
    ],
)
def test_a_fault_that_is_found_later_than_frozen_is_red(
    frozen: str, found: dict[str, Any], is_red: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FROZEN, "kl_sign", frozen)
    assert bool(problem(finding(**found))) is is_red


@pytest.mark.parametrize(
    ("name", "phases", "leaf", "is_localised"),
    [
        ("kl_sign", ("loss",), "policy", True),
        ("kl_sign", ("rollout", "forward"), "", True),
        ("kl_sign", ("optimizer",), "policy.embedding", False),
        ("kl_sign", (), "", False),
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


def test_a_check_that_is_late_does_not_end_it_where_another_is_sooner() -> None:
    late = finding(check=CHAOS, how="crash and resume", steps_after=4)
    later, in_time = finding(steps_after=5), finding(steps_after=1)
    assert soonest([]) is None
    asked = iter([in_time, late])
    assert soonest(asked) is in_time
    assert next(asked) is late, "means after one that is in time are not asked"
    assert soonest([late]) is late
    assert soonest([late, later]) is late
    sooner = soonest([late, in_time])
    assert sooner is not None
    assert (sooner.check, sooner.steps_after) == (GATE, 1)
    assert sooner.how == "the honest engine; crash and resume, 4 steps after"


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
    assert differing(a, [of_another], tmp_path) == "perturbed: identity differs: seed"


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
