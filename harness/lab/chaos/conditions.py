"""How a perturbation is brought to a run: what it is called with, started with, and in which environment. Pure.

    payload keys ─▶ call        hash_seed, threads ─▶ variables        nice, cores ─▶ launch.py        crash ─▶ crash.py
    latency ─▶ recording/latency

A load is a program of its own beside the run, which the bench starts.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.lab.experiments.flat_config import overridden
from harness.lab.experiments.perturbation_factors import (
    CORES,
    CRASH,
    HASH_SEED,
    LATENCY,
    LOAD,
    NICE,
    OUTSIDE,
    THREADS,
    USUAL_HASH_SEED,
    Factor,
    Perturbation,
    parse_moment,
    written,
)
from harness.recording.run_spec import RunSpec

LAUNCH = str(Path(__file__).with_name("launch.py"))
BUSY = str(Path(__file__).with_name("busy.py"))
DELAYS = "harness.recording.latency:Latency"
CRASHING_ENTRY = "harness.lab.chaos.crash:run"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def payload_values(perturbation: Perturbation) -> dict[str, Any]:
    """What of it is a key of the payload."""
    return {name: value for name, value in perturbation.items() if name not in OUTSIDE}


def callbacks_of(perturbation: Perturbation, latency: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What looks on in its process: what delays the calls of these functions, where they are delayed."""
    if LATENCY not in perturbation:
        return {}
    return {DELAYS: {"seed": perturbation[LATENCY], "functions": list(latency)}}


def marking(run_spec: RunSpec, mark: Path) -> RunSpec:
    """The run spec with delays, where it has some, that make a file when the first call is delayed."""
    marked = {name: {**fields, "mark": str(mark)} for name, fields in run_spec.callbacks.items() if name == DELAYS}
    return replace(run_spec, callbacks={**run_spec.callbacks, **marked})


def environ_of(perturbation: Perturbation, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a run. Without a hash seed it has the usual one, so that it is the same each time.

    Waiting threads sleep: more threads than cores would spend most of a run spinning.
    """
    seed = perturbation.get(HASH_SEED, environ.get("PYTHONHASHSEED") or USUAL_HASH_SEED)
    found = {"OMP_WAIT_POLICY": "passive", **environ, "PYTHONHASHSEED": str(seed)}
    if THREADS in perturbation:
        found |= dict.fromkeys(THREAD_VARIABLES, str(perturbation[THREADS]))
    return found


def launched(run_spec: RunSpec, perturbation: Perturbation, factors: Sequence[Factor] = ()) -> RunSpec:
    """Return the run spec with its program started by `launch.py`, with its factors from outside.

    These are the perturbation, and the usual values of other factors from outside.
    """
    nice, cores = perturbation.get(NICE, 0), perturbation.get(CORES, 0)
    usual = {each.name: each.usual for each in factors if each.is_outside and each.usual is not None}
    known = {**usual, **perturbation}
    outside = {name: written(known[name]) for name in OUTSIDE if name in known}
    return replace(
        run_spec,
        argv=(sys.executable, LAUNCH, str(nice), str(cores), *run_spec.argv),
        perturbation={**run_spec.perturbation, **outside},
    )


def crashing(run_spec: RunSpec, perturbation: Perturbation) -> RunSpec:
    """The run spec of an entry that is killed at the moment that `crash` names."""
    call, (step, phase) = run_spec.call, parse_moment(perturbation[CRASH])
    assert call is not None
    config = {"entry": call.entry, "config": call.config, "step": step, "phase": phase}
    return replace(run_spec, call=replace(call, entry=CRASHING_ENTRY, config=config))


def going_on(run_spec: RunSpec, crashed: Path) -> RunSpec:
    """Return the run spec of a run that resumes from the newest checkpoint of a crashed run."""
    call = run_spec.call
    assert call is not None and call.resume is not None
    config = overridden(call.config, {call.resume["run"]: str(crashed.absolute())}, "chaos")
    return replace(run_spec, call=replace(call, config=config))


def busy_argv(perturbation: Perturbation) -> tuple[str, ...]:
    """The command of the load beside a run; empty for none."""
    return (sys.executable, "-I", "-S", BUSY, str(perturbation[LOAD])) if LOAD in perturbation else ()
