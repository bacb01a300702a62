"""Processes of a run that are killed: the documented end, nothing left running, and the same bits afterwards."""

import os
import random
import re
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from harness.core.exit_codes import ExitCode
from rlcore.checkpoints.checkpoint import load_newest
from tests.rlcore.deployments.recorded_runs import (
    HERE,
    ON_RAY,
    SHARDED,
    TWO_RANKS,
    await_true,
    num_steps_of,
    processes_of,
    train,
    train_and_kill,
    verdict,
    workers_of,
)

pytestmark = pytest.mark.full
RESTART = {"deployment.on_worker_death": "restart"}
LONGER = {"training.num_steps": "60", "output.checkpoint_every": "2"}
NUM_KILLS = int(os.environ.get("RLCORE_NUM_KILLS", "5"))
"""Random kills of workers; the full size has 50."""


def kill_a_worker(out: Path, seed: int) -> None:
    """Kill a worker of a run at a random moment after its first step."""
    draw = random.Random(seed)
    num_workers = 4 if seed % 5 == 4 else 2
    await_true(lambda: len(workers_of(out)) == num_workers, "workers")
    victim, num_steps, delay_s = draw.choice(workers_of(out)), draw.randrange(3), draw.uniform(0, 0.3)
    await_true(lambda: num_steps_of(out) > num_steps, "steps")
    time.sleep(delay_s)
    os.kill(victim, signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of one process that nothing has happened to."""
    directory = tmp_path_factory.mktemp("runs")
    train(directory, "whole", {**HERE, **LONGER})
    return directory / "whole"


@pytest.mark.parametrize("seed", range(NUM_KILLS))
def test_a_worker_killed_at_a_random_moment_is_replaced_and_no_bit_moves(
    whole: Path, tmp_path: Path, seed: int
) -> None:
    settings = {**(SHARDED if seed % 5 == 4 else TWO_RANKS), **RESTART, **LONGER}
    done = train_and_kill(tmp_path, "killed", settings, partial(kill_a_worker, seed=seed))
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert verdict(tmp_path, str(whole), "killed") == "EQUAL  60 steps, every bit"
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert sum('"loss"' in line for line in lines) == 60, "no step is written twice"
    assert "restart 1 of 3 from the last checkpoint" in done.stderr, "the kill found a worker at work"


def test_without_restarts_a_death_ends_the_run_and_names_the_worker(tmp_path: Path) -> None:
    done = train_and_kill(tmp_path, "killed", {**TWO_RANKS, **LONGER}, partial(kill_a_worker, seed=1))
    assert done.code != ExitCode.OK
    assert "was killed by SIGKILL" in done.stderr and "worker models, rank" in done.stderr, done.stderr


def test_a_node_of_ray_that_dies_ends_the_run_with_its_cause_and_nothing_is_left(tmp_path: Path) -> None:
    def kill_the_node(out: Path) -> None:
        await_true(lambda: num_steps_of(out) >= 2 or not processes_of(out), "steps")
        for pid, line in processes_of(out).items():
            if "raylet/raylet" in line.partition(" ")[0]:
                os.kill(pid, signal.SIGKILL)

    settings = {**ON_RAY, "training.num_steps": "200"}
    done = train_and_kill(tmp_path, "killed", settings, kill_the_node)
    assert done.code != ExitCode.OK
    assert re.search(r"^error: (an actor has ended: in worker models, rank|\w+Error)", done.stderr, re.M), done.stderr
    assert "output.resume=killed" in done.stderr


def test_workers_end_with_a_killed_controller_and_the_run_is_resumed_elsewhere(whole: Path, tmp_path: Path) -> None:
    def kill_the_controller(out: Path) -> None:
        await_true(lambda: num_steps_of(out) >= 2 or not processes_of(out), "steps")
        controllers = [pid for pid, line in processes_of(out).items() if "scenario_main" in line]
        for pid in controllers:
            os.kill(pid, signal.SIGKILL)
        await_true(lambda: not processes_of(out), "workers end with their controller")

    done = train_and_kill(tmp_path, "killed", {**TWO_RANKS, **LONGER}, kill_the_controller)
    assert done.code != ExitCode.OK
    train(tmp_path, "resumed", {**HERE, **LONGER, "output.resume": str(tmp_path / "killed")})
    ends = [load_newest(run / "checkpoints") for run in (whole, tmp_path / "resumed")]
    assert ends[0] is not None and ends[1] is not None
    assert ends[0].values["state"] == ends[1].values["state"]
