"""The catalogue of faults: each says where it comes from, fits the engine as it is, and leaves nothing behind."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

import tests.benchmarks.mutations.fault as fault_module
from rlcore.config import read_config
from tests.benchmarks.mutations.catalogue import COLLECTIONS, FAULTS, named
from tests.benchmarks.mutations.fault import PLACES, Fault, Probe, honest, replaced
from tests.benchmarks.mutations.faults import (
    advantages,
    between_steps,
    critics,
    decoding,
    losses,
    minibatches,
    numerics,
    optimizer,
    resume,
    review_learning,
    review_rollouts,
    review_state,
    rewards,
    sampling,
    second_deployments,
    second_learning,
    second_rollouts,
    second_state,
    weights,
)
from tests.benchmarks.mutations.settings import DIFFERENCES, payload
from tests.benchmarks.mutations.table import markers
from tests.benchmarks.mutations.workers import ROOT

MODULES = (
    *(advantages, between_steps, critics, decoding, losses, minibatches),
    *(numerics, optimizer, resume, rewards, sampling, weights),
    *(review_learning, review_rollouts, review_state),
    *(second_deployments, second_learning, second_rollouts, second_state),
)
THREAD = re.compile(r"^[\w./-]+ #\d+$")


def test_there_are_enough_and_most_name_their_thread() -> None:
    assert all(len(faults) >= 40 for faults in COLLECTIONS.values())
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert sum(bool(THREAD.match(fault.source)) for fault in FAULTS) >= 70


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_says_what_it_is(fault: Fault) -> None:
    assert fault.source
    assert 10 < len(fault.about) < 90
    assert fault.phases
    assert set(fault.phases) <= set(PLACES)
    assert fault.setting in DIFFERENCES


def test_every_fault_of_a_module_is_in_the_catalogue() -> None:
    made = {each.name for module in MODULES for each in vars(module).values() if isinstance(each, Fault)}
    assert made == {fault.name for fault in FAULTS}


@pytest.mark.parametrize("setting", DIFFERENCES)
def test_settings_are_legal_and_tiny(setting: str) -> None:
    config = read_config(payload(setting))
    assert config.training.num_steps in (5, 7, 60)
    assert config.model.width <= 96


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


def test_a_probe_tells_the_first_step_that_differs() -> None:
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


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_the_tables_in_the_design_are_of_this_catalogue(collection: str) -> None:
    text = (ROOT / "harness" / "DESIGN.md").read_text("utf-8")
    begin, end = markers(collection)
    table = text.partition(begin)[2].partition(end)[0]
    rows = re.findall(r"^\| (\w+): (.+?) \| (.+?) \|", table, re.MULTILINE)
    assert rows == [(fault.name, fault.about, fault.source) for fault in COLLECTIONS[collection]]
    assert re.search(r"^\d{4}-\d\d-\d\d, Python \S+, torch \S+", table, re.MULTILINE)


def test_names_are_taken_from_functions() -> None:
    made = fault_module.fault("a #1", "about", phases=("loss",))(_does_nothing)
    assert (made.name, made.setting, made.leaves) == ("_does_nothing", "grpo", ())
    assert replace(made, name="other").name == "other"


def _does_nothing(probe: Probe) -> Iterator[None]:
    yield
