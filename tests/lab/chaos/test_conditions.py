"""How a perturbation is brought to a run: its call, its variables, how it is started."""

import json
import os
import subprocess
import sys

from harness.lab.chaos.search import LAUNCH, environ_of


def test_a_run_with_nothing_changed_has_a_hash_seed_too() -> None:
    assert environ_of({}, {"A": "b"}) == {"A": "b", "PYTHONHASHSEED": "0", "OMP_WAIT_POLICY": "passive"}
    assert environ_of({}, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"
    assert environ_of({}, {"PYTHONHASHSEED": "9"})["PYTHONHASHSEED"] == "9"
    assert environ_of({"hash_seed": 7}, {"PYTHONHASHSEED": "9"})["PYTHONHASHSEED"] == "7"


def test_threads_go_by_all_their_names() -> None:
    found = environ_of({"threads": 3}, {"OMP_NUM_THREADS": "1"})
    assert {found[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"3"}


def test_the_launcher_becomes_the_program_with_less_of_the_machine() -> None:
    code = "import os, json; print(json.dumps([os.nice(0), sorted(os.sched_getaffinity(0)), os.getpid()]))"
    argv = [sys.executable, LAUNCH, "3", "1", sys.executable, "-S", "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        nice, cores, pid = json.loads(process.stdout.read())
    assert nice == min(os.nice(0) + 3, 19)
    assert cores == sorted(os.sched_getaffinity(0))[:1]
    assert pid == process.pid
