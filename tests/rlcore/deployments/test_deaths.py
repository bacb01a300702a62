"""Processes of a run that are killed: the documented end, nothing left running, and the same bits afterwards."""

import os
import random
import re
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from rlcore.checkpoint import load_newest
from tests.rlcore.deployments.recorded_runs import (
    HERE,
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
LONGER = {"training.num_steps": "40", "output.checkpoint_every": "2"}
NUM_KILLS = int(os.environ.get("RLCORE_NUM_KILLS", "3"))
"""Random kills of workers; the full size has 50."""


def kill_workers(out: Path, num_kills: int) -> None:
    """Kill workers of a run of two ranks: some while they start, some in the middle of a step."""
    draw, killed = random.Random(num_kills), set[int]()
    for number in range(num_kills):
        await_true(lambda: len(set(workers_of(out)) - killed) == 2, "two new workers")
        workers = sorted(set(workers_of(out)) - killed)
        if (number + 1) % 3:
            num_steps = num_steps_of(out) + draw.randrange(3)
            await_true(lambda num_steps=num_steps: num_steps_of(out) > num_steps, "steps")  # type: ignore[misc]
        time.sleep(draw.uniform(0, 0.3))
        os.kill(draw.choice(workers), signal.SIGKILL)
        killed.update(workers)


@pytest.mark.timeout(600 + 60 * NUM_KILLS)
def test_workers_killed_at_random_moments_are_replaced_and_no_bit_moves(tmp_path: Path) -> None:
    num_steps = 30 * NUM_KILLS
    longer = {"training.num_steps": str(num_steps), "output.checkpoint_every": "2"}
    restart = {"deployment.on_worker_death": "restart", "deployment.max_restarts": str(NUM_KILLS)}
    done = train_and_kill(
        tmp_path, "killed", {**TWO_RANKS, "deployment.sharding": "full", **restart, **longer},
        partial(kill_workers, num_kills=NUM_KILLS),
    )  # fmt: skip
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert f"restart {NUM_KILLS} of {NUM_KILLS} from the last checkpoint" in done.stderr
    train(tmp_path, "whole", {**HERE, **longer})
    assert verdict(tmp_path, "whole", "killed") == f"EQUAL  {num_steps} steps, every recorded bit"
    lines = (tmp_path / "killed" / "metrics.jsonl").read_text("utf-8").splitlines()
    assert sum('"loss"' in line for line in lines) == num_steps, "no step is written twice"


def test_without_restarts_a_death_ends_the_run_and_names_the_worker(tmp_path: Path) -> None:
    done = train_and_kill(tmp_path, "killed", {**TWO_RANKS, **LONGER}, partial(kill_workers, num_kills=1))
    assert done.code != ExitCode.OK
    assert "an actor has ended: in worker models, rank" in done.stderr, done.stderr


def test_a_node_of_ray_that_dies_ends_the_run_with_its_cause_and_nothing_is_left(tmp_path: Path) -> None:
    def kill_the_node(out: Path) -> None:
        await_true(lambda: num_steps_of(out) >= 2, "steps")
        for pid, line in processes_of(out).items():
            if "raylet/raylet" in line.partition(" ")[0]:
                os.kill(pid, signal.SIGKILL)

    settings = {**TWO_RANKS, "training.num_steps": "200"}
    done = train_and_kill(tmp_path, "killed", settings, kill_the_node)
    assert done.code != ExitCode.OK
    assert re.search(r"^error: (an actor has ended: in worker models, rank|\w+Error)", done.stderr, re.M), done.stderr
    assert "output.resume=killed" in done.stderr


def test_workers_end_with_a_killed_controller_and_the_run_is_resumed_elsewhere(tmp_path: Path) -> None:
    def kill_the_controller(out: Path) -> None:
        await_true(lambda: num_steps_of(out) >= 4, "steps and a checkpoint")
        controllers = [pid for pid, line in processes_of(out).items() if "scenario_main" in line]
        for pid in controllers:
            os.kill(pid, signal.SIGKILL)
        await_true(lambda: not processes_of(out), "workers end with their controller")

    done = train_and_kill(tmp_path, "killed", {**TWO_RANKS, **LONGER}, kill_the_controller)
    assert done.code != ExitCode.OK
    train(tmp_path, "whole", {**HERE, **LONGER})
    train(tmp_path, "resumed", {**HERE, **LONGER, "output.resume": str(tmp_path / "killed")})
    ends = [load_newest(run / "checkpoints") for run in (tmp_path / "whole", tmp_path / "resumed")]
    assert ends[0] is not None and ends[1] is not None
    assert ends[0].values["state"] == ends[1].values["state"]
