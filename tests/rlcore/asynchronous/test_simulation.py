"""The simulation has the speeds that are known of a few runs, and reads what a run has measured."""

import heapq
import json
import math
import os
import random
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from rlcore.asynchronous.simulation import Expected, Measured, Mode, measured_run, simulate, table
from rlcore.errors import InvalidValueError
from tests.support.asynchronous_run import make_model, write_files

NUM_SAMPLERS, NUM_STEPS = 4, 24


def measured(sigma: float, cap: float = 8.0) -> Measured:
    """Lognormal rollouts, and training that takes as long as sampling would if no place were ever empty."""
    rng = random.Random(7)
    rollout_s = [min(math.exp(rng.gauss(0, sigma)), cap) for _ in range(1_000)]
    mean_s = math.fsum(rollout_s) / len(rollout_s)
    return Measured(rollout_s, places=16, train_s=16 * 8 * mean_s / 64, groups_per_step=16, group_size=8)


EQUAL, TAIL, LONG_TAIL = measured(0.0), measured(1.0), measured(1.0, cap=30.0)


def run(mode: Mode, ahead: int, of: Measured = TAIL, **options: Any) -> Expected:
    return simulate(
        of, **{"mode": mode, "ahead": ahead, "num_samplers": NUM_SAMPLERS, "num_steps": NUM_STEPS, **options}
    )


def in_turns_s(of: Measured, num_steps: int, seed: int) -> float:
    """Seconds of a step: a list schedule of each sampler's groups, then training."""
    rng, total_s = random.Random(seed), 0.0
    for step in range(num_steps):
        places = [[0.0] * of.places for _ in range(NUM_SAMPLERS)]
        for group in range(step * of.groups_per_step, (step + 1) * of.groups_per_step):
            for _ in range(of.group_size):
                free = places[group % NUM_SAMPLERS]
                heapq.heapreplace(free, free[0] + rng.choice(of.rollout_s))
        total_s += max(map(max, places)) + of.train_s
    return total_s / num_steps


@pytest.mark.parametrize("mode", ["strict", "free"])
@pytest.mark.parametrize("of", [EQUAL, TAIL, LONG_TAIL], ids=["equal", "tail", "long tail"])
def test_without_asynchrony_sampling_and_training_take_turns(mode: Mode, of: Measured) -> None:
    found = run(mode, 0, of, seed=3)
    assert found.step_s == pytest.approx(in_turns_s(of, NUM_STEPS, seed=3), rel=0.01)
    assert (found.speedup, found.mean_lag, found.most_lag, found.discarded) == (1, 0, 0, 0)
    assert found.trainer == pytest.approx(of.train_s / found.step_s)
    used_s = NUM_STEPS * found.step_s * found.samplers * NUM_SAMPLERS * of.places
    rng = random.Random(3)
    assert used_s == pytest.approx(math.fsum(rng.choice(of.rollout_s) for _ in range(NUM_STEPS * 16 * 8)))


@pytest.mark.parametrize("mode", ["strict", "free"])
def test_one_version_ahead_is_enough_for_rollouts_of_equal_length(mode: Mode) -> None:
    by_ahead = [run(mode, ahead, EQUAL) for ahead in (1, 2, 4)]
    for found in by_ahead:
        assert 1.9 < found.speedup <= 2
        assert min(found.trainer, found.samplers) > 0.95
    assert by_ahead[0].step_s == pytest.approx(by_ahead[2].step_s)


@pytest.mark.parametrize("of", [TAIL, LONG_TAIL], ids=["tail", "long tail"])
def test_versions_ahead_hide_a_tail(of: Measured) -> None:
    strict, free = ([run(mode, a, of, holds_one_version=False) for a in (1, 2, 4)] for mode in ("strict", "free"))
    for speeds in (strict, free):
        assert all(1.05 * less.speedup < more.speedup for less, more in pairwise(speeds))
    for less, more in zip(strict, free, strict=True):
        assert less.speedup <= more.speedup
    assert strict[0].trainer < 0.6, "with A = 1 the trainer waits for the longest rollout"


@pytest.mark.parametrize("seed", range(3))
def test_a_sampler_of_one_version_gains_little_from_more_versions_ahead(seed: int) -> None:
    speeds = [run("strict", ahead, seed=seed).speedup for ahead in (1, 2, 4)]
    assert all(less < more for less, more in pairwise(speeds))
    assert 1.3 < speeds[0] < speeds[2] < 1.9
    assert run("free", 4, seed=seed).speedup == pytest.approx(speeds[2], rel=0.05)
    assert run("strict", 4, seed=seed, holds_one_version=False).speedup > 1.5 * speeds[2]


@pytest.mark.parametrize("holds_one_version", [True, False])
@pytest.mark.parametrize("mode", ["strict", "free"])
def test_more_samplers_are_never_slower(mode: Mode, holds_one_version: bool) -> None:
    for ahead in (1, 4):
        found = [
            run(mode, ahead, num_samplers=n, num_steps=20, holds_one_version=holds_one_version)
            for n in (1, 2, 4, 8, 16)
        ]
        assert all(more.step_s <= less.step_s for less, more in pairwise(found))


def test_strict_discards_nothing_and_lags_as_planned() -> None:
    for ahead in (1, 3):
        found = run("strict", ahead, LONG_TAIL, max_off_policy_steps=0)
        assert (found.discarded, found.most_lag) == (0, ahead)
        assert found.mean_lag == pytest.approx(sum(min(step, ahead) for step in range(NUM_STEPS)) / NUM_STEPS)


def test_free_trains_nothing_older_than_allowed() -> None:
    by_most = [run("free", 4, LONG_TAIL, max_off_policy_steps=most) for most in (0, 1, 2, 4, NUM_STEPS)]
    assert [found.most_lag <= most for most, found in zip((0, 1, 2, 4), by_most, strict=False)] == [True] * 4
    assert all(less.discarded > more.discarded for less, more in pairwise(by_most))
    assert by_most[-1].discarded == 0


@pytest.mark.parametrize("mode", ["strict", "free"])
@pytest.mark.parametrize("train", [0.0, 0.2, 5.0])
def test_shares_are_shares(mode: Mode, train: float) -> None:
    of = replace(LONG_TAIL, train_s=train * LONG_TAIL.train_s)
    for ahead in (0, 2, 8):
        found = run(mode, ahead, of, num_steps=12)
        assert all(0 <= share <= 1 + 1e-9 for share in (found.trainer, found.samplers, found.discarded))
        assert found.step_s >= of.train_s


def test_a_slow_trainer_is_the_only_limit() -> None:
    of = replace(TAIL, train_s=20 * TAIL.train_s)
    assert run("strict", 1, of).trainer > 0.98


def test_a_seed_decides_everything() -> None:
    assert run("free", 2, seed=1) == run("free", 2, seed=1)
    assert run("free", 2, seed=1).step_s != run("free", 2, seed=2).step_s


@pytest.mark.parametrize(
    "wrong",
    [{"mode": "replay"}, {"ahead": -1}, {"num_samplers": 0}, {"num_steps": 0}, {"max_off_policy_steps": -1}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_setting_that_cannot_be_simulated(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(InvalidValueError, match=f"{name}={value!r}"):
        run(**{"mode": "strict", "ahead": 1, **wrong})


def test_a_table_has_a_row_for_each_setting() -> None:
    heading, *rows = table(TAIL, [0, 1], [1, 4], num_steps=10)
    settings = [(mode, a, n) for mode in ("strict", "free") for a in ("0", "1") for n in ("1", "4")]
    assert [tuple(row.split()[:3]) for row in rows] == settings
    assert {len(row) for row in rows} == {len(heading)}
    found = run("free", 1, num_steps=10)
    assert rows[-1].split()[3:6] == [f"{1 / found.step_s:.3g}", f"{found.speedup:.2f}x", f"{found.trainer:.0%}"]


# ------------------------------------------------------------------------------------------------ what a run measured

SIZES = {"places": 16, "groups_per_step": 4, "group_size": 2}


def write(directory: Path, trained: list[dict[str, Any]], sampled: list[dict[str, Any]]) -> Path:
    for name, lines in {"metrics.jsonl": trained, "rollouts.jsonl": sampled}.items():
        (directory / name).write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return directory


def trained(step: int, seconds: float) -> dict[str, Any]:
    return {"step": step, "loss": 0.1, "seconds/train": seconds, "seconds/wait": 9.0}


def test_a_run_is_read_without_its_first_step(tmp_path: Path) -> None:
    steps = [trained(0, 30.0), trained(1, 7.0), trained(1, 2.0), trained(2, 4.0)]  # step 1 again after a restart
    sampled = [
        {"step": 0, "rollout_s": [60.0, 61.0], **SIZES},
        {"step": 1, "rollout_s": [1.0, 2.5]},
        {"step": 2, "rollout_s": []},
        {"step": 3, "rollout_s": [3.0]},
    ]
    found = measured_run(write(tmp_path, steps, sampled))
    assert asdict(found) == {"rollout_s": [1.0, 2.5, 3.0], "train_s": 3.0, **SIZES}
    assert simulate(found, mode="strict", ahead=1, num_samplers=1, num_steps=10).step_s >= 3


def test_a_run_of_one_step_is_read(tmp_path: Path) -> None:
    found = measured_run(write(tmp_path, [trained(0, 3.0)], [{"step": 0, "rollout_s": [1.0], **SIZES}]))
    assert (found.rollout_s, found.train_s) == ([1.0], 3.0)


def test_a_run_without_rollouts_cannot_be_simulated(tmp_path: Path) -> None:
    found = measured_run(write(tmp_path, [trained(0, 3.0)], [{"step": 0, "rollout_s": [], **SIZES}]))
    with pytest.raises(InvalidValueError, match="0 rollouts"):
        simulate(found, mode="strict", ahead=1, num_samplers=1)


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts.jsonl"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write(tmp_path, [trained(0, 3.0)], [{"step": 0, "rollout_s": [1.0], **SIZES}]) / name).unlink()
    with pytest.raises(InvalidValueError, match=f"{name} cannot be read.*No such file") as caught:
        measured_run(tmp_path)
    assert caught.value.remedy == "name the directory of a run that has finished a step"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metrics.jsonl", "", "has no step, seconds/train"),
        ("metrics.jsonl", '{"step": 0}\n', "has no seconds/train"),
        ("rollouts.jsonl", '{"step": 0, "rollout_s": [1.0], "group_size": 2}\n', "has no places, groups_per_step"),
        ("rollouts.jsonl", '{"step": 0, "rollo', "Unterminated string"),
    ],
    ids=["empty", "no seconds", "no sizes", "half a line"],
)
def test_a_file_without_what_is_needed_is_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    (write(tmp_path, [trained(0, 3.0)], [{"step": 0, "rollout_s": [1.0], **SIZES}]) / name).write_text(content, "utf-8")
    with pytest.raises(InvalidValueError, match=f"{name} cannot be read: .*{said}"):
        measured_run(tmp_path)


# --------------------------------------------------------------------------------------------------------- a real run

TRAIN_S, TOKEN_S, NUM_FIRST = 3.0, 0.1, 3
PROGRAM = f"""
import time
from rlcore.asynchronous import trainer
from rlcore.samplers.batching import ContinuousBatch
from tests.support import asynchronous_run

def sleeps(_):
    for module, name, seconds in ((ContinuousBatch, "step", {TOKEN_S}), (trainer, "read_batch", {TRAIN_S})):
        def slow(*given, work=getattr(module, name), seconds=seconds):
            time.sleep(seconds)
            return work(*given)
        setattr(module, name, slow)

asynchronous_run._delay = sleeps
asynchronous_run.main()
"""
"""Completes a run in which sleeping takes more time than work, so that it hardly depends on the machine."""


def real_run(directory: Path, model: Path, ahead: int) -> Path:
    sizes: dict[str, Any] = {"batch_size": 8, "rollouts_per_example": 4, "sampling": {"max_tokens": 32}}
    write_files(directory, model, num_steps=10, max_async_level=ahead, train={"learning_rate": 1e-6}, **sizes)
    command = [sys.executable, "-c", PROGRAM, str(directory), "--complete", "--delays", "0"]
    subprocess.run(command, env={**os.environ, "MKL_CBWR": "AUTO"}, check=True, timeout=280)
    return directory / "run_default"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_real_runs_have_the_speeds_that_are_simulated_from_one_of_them(tmp_path: Path) -> None:
    """Within 30 %; without one version ahead a step takes nearly twice as long, so that a wrong A would be found."""
    model, real_s, expected_s = make_model(tmp_path / "model"), dict[int, float](), dict[int, float]()
    runs = {ahead: real_run(tmp_path / str(ahead), model, ahead) for ahead in (0, 1, 2)}
    of = measured_run(runs[1])
    for ahead, directory in runs.items():
        lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text("utf-8").splitlines()]
        real_s[ahead] = fmean(line["seconds/wait"] + line["seconds/train"] for line in lines[NUM_FIRST:])
        expected_s[ahead] = simulate(of, mode="strict", ahead=ahead, num_samplers=1, num_steps=200).step_s
    print(f"seconds of a step by A: {real_s}, simulated {expected_s}")
    assert real_s == pytest.approx(expected_s, rel=0.3)
    assert real_s[0] > 1.3 * real_s[1], "or the runs would not tell one A from another"
