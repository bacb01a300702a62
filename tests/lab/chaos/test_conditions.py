"""How a perturbation is brought to a run: its call, its variables, how it is started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.lab.chaos.conditions import (
    BUSY,
    DELAYS,
    LAUNCH,
    busy_argv,
    callbacks_of,
    crashing,
    environ_of,
    going_on,
    launched,
    marking,
    payload_values,
)
from harness.lab.experiments.entry_call import EntryCall
from harness.lab.experiments.perturbation_factors import Factor, outside_factors
from harness.lab.experiments.perturbation_values import Span
from harness.lab.experiments.run_spec import RunSpec

CALL = EntryCall("a:b", {"output": {"x": 1}}, ("output",), {"run": "output.run", "step": "output.step"})
ENVELOPE = RunSpec(("python", "-c", "pass"), identity={"seed": "1"}, call=CALL, perturbation={"output.x": "1"})


def test_only_dotted_keys_are_the_payloads() -> None:
    assert payload_values({"runtime.n": 1, "hash_seed": 2, "crash": "1.loss", "load": 1}) == {"runtime.n": 1}


def test_a_run_with_nothing_changed_has_a_hash_seed_too() -> None:
    assert environ_of({}, {"A": "b"}) == {"A": "b", "PYTHONHASHSEED": "0", "OMP_WAIT_POLICY": "passive"}
    assert environ_of({}, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"
    assert environ_of({}, {"PYTHONHASHSEED": "9"})["PYTHONHASHSEED"] == "9"
    assert environ_of({"hash_seed": 7}, {"PYTHONHASHSEED": "9"})["PYTHONHASHSEED"] == "7"


def test_threads_go_by_all_their_names() -> None:
    found = environ_of({"threads": 3}, {"OMP_NUM_THREADS": "1"})
    assert {found[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"3"}


def test_what_a_program_does_not_know_of_itself_is_told_and_is_no_identity() -> None:
    found = launched(ENVELOPE, {"nice": 5, "load": 2, "output.x": 1})
    assert found.argv == (sys.executable, LAUNCH, "5", "0", "python", "-c", "pass")
    assert found.perturbation == {"output.x": "1", "nice": "5", "load": "2"}
    assert (found.identity, found.call) == (ENVELOPE.identity, CALL)


def test_what_is_not_changed_is_told_as_it_is() -> None:
    """So that two runs differ in a value, and not in that one of them tells none."""
    factors = (Factor("output.x", Span(1, 9), 1), *outside_factors(2, {"PYTHONHASHSEED": "5"}))
    assert launched(ENVELOPE, {"hash_seed": 7}, factors).perturbation == {
        "output.x": "1", "hash_seed": "7", "load": "0", "cores": "2", "nice": "0"
    }  # fmt: skip
    assert launched(ENVELOPE, {}, factors).perturbation["hash_seed"] == "5"


def test_delays_are_put_before_what_the_scenario_names() -> None:
    assert callbacks_of({"latency": 3, "nice": 1}, ["tools:ask"]) == {DELAYS: {"seed": 3, "functions": ["tools:ask"]}}
    assert callbacks_of({"nice": 1}, ["tools:ask"]) == {}
    pytest.importorskip("torch")
    from harness.recording.callbacks import make_callbacks

    assert make_callbacks({DELAYS: {"seed": 3, "functions": [], "mark": ""}})


def test_a_run_with_delays_marks_that_it_had_one() -> None:
    fields = {"seed": 3, "functions": ["tools:ask"]}
    found = marking(RunSpec(("python",), callbacks={DELAYS: fields}), Path("run-2/delayed"))
    assert found.callbacks == {DELAYS: {**fields, "mark": "run-2/delayed"}}
    assert marking(RunSpec(("python",)), Path("run-2/delayed")).callbacks == {}


def test_a_crash_wraps_the_entry_and_not_the_identity() -> None:
    found = crashing(ENVELOPE, {"crash": "2.loss"})
    assert found.call is not None
    assert found.call.config == {"entry": "a:b", "config": CALL.config, "step": 2, "phase": "loss"}
    assert found.identity == ENVELOPE.identity


def test_a_run_goes_on_from_the_directory_of_the_one_that_crashed(tmp_path: Path) -> None:
    found = going_on(ENVELOPE, tmp_path)
    assert found.call is not None
    assert found.call.config == {"output": {"x": 1, "run": str(tmp_path)}}


def test_a_load_is_a_program() -> None:
    assert busy_argv({"load": 3})[-2:] == (BUSY, "3")
    assert busy_argv({"nice": 3}) == ()


def test_the_launcher_becomes_the_program_with_less_of_the_machine() -> None:
    code = "import os, json; print(json.dumps([os.nice(0), sorted(os.sched_getaffinity(0)), os.getpid()]))"
    argv = [sys.executable, LAUNCH, "3", "1", sys.executable, "-S", "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        nice, cores, pid = json.loads(process.stdout.read())
    assert nice == min(os.nice(0) + 3, 19)
    assert cores == sorted(os.sched_getaffinity(0))[:1]
    assert pid == process.pid
