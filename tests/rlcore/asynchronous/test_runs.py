"""Whole runs of three processes: whoever is slow or killed, their bits are those of the undisturbed run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlcore.asynchronous.audit import audit
from rlcore.asynchronous.broadcast import to_files
from rlcore.asynchronous.directory import BROADCASTS, read, steps
from rlcore.config import read_config
from rlcore.entrypoint import train
from rlcore.log import NullRecorder
from rlcore.models.build import build_model
from tests.support.asynchronous_run import MODULE, bits, make_model, write_files

ENVIRONMENT = {**os.environ, "MKL_CBWR": "AUTO"}
Run = Callable[..., Path]


def program(*arguments: str, module: str = MODULE) -> str:
    """Run a program of tests.support in a process without threads, from which others are forked."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def complete(tmp_path: Path) -> Run:
    """Make whole runs of one model, each in a directory of its own -> the run's directory."""
    model = make_model(tmp_path / "model")

    def complete(name: str, *options: str, **orch: Any) -> Path:
        write_files(tmp_path / name, model, **orch)
        program(str(tmp_path / name), "--complete", *options)
        return tmp_path / name / "run_default"

    return complete


@pytest.mark.parametrize("lora", [None, pytest.param({"rank": 4, "alpha": 8.0}, marks=pytest.mark.full)])
def test_at_no_distance_the_weights_are_those_of_the_synchronous_page(
    complete: Run, tmp_path: Path, lora: dict[str, Any] | None
) -> None:
    train_section = {"lora": True, **{f"lora_{name}": value for name, value in lora.items()}} if lora else {}
    run = complete("asynchronous", max_async_level=0, num_steps=4, train=train_section)
    page = {
        "seed": 42,
        "model": {"path": str(tmp_path / "model"), "lora": lora},
        "task": {"name": "reverse_text", "num_prompts": 64, "num_heldout": 4},
        "warm_start": {"num_steps": 0},
        "sampling": {"max_tokens": 8},
        "algorithm": {"name": "grpo", "advantage": "dr_grpo", "loss": "masked_is", "aggregation": "token-mean"},
        "optimizer": {"learning_rate": 0.003, "weight_decay": 0.1, "schedule": "linear"},
        "training": {"num_steps": 4, "prompts_per_step": 4, "group_size": 4, "microbatch_size": 4},
    }
    state = train(read_config(page), level="invariant", directory=tmp_path / "page", recorder=NullRecorder())
    trained = to_files(state.decoder, {})
    assert {name: read(run / BROADCASTS, 4, name) for name in trained} == trained
    assert to_files(build_model(read_config(page))[1], {}) != trained


@pytest.mark.parametrize(
    ("ahead", "runs", "kills", "train"),
    [
        (1, 1, 4, {}),
        pytest.param(1, 5, 20, {}, marks=pytest.mark.full),
        pytest.param(4, 2, 10, {}, marks=pytest.mark.full),
        pytest.param(2, 3, 10, {"lora": True, "noise_scheduler": {"enabled": True}}, marks=pytest.mark.full),
    ],
)
def test_neither_delays_nor_kills_move_a_bit(
    tmp_path: Path, ahead: int, runs: int, kills: int, train: dict[str, Any]
) -> None:
    numbers = {"--ahead": ahead, "--runs": runs, "--kills": kills, "--steps": 6, "--train": json.dumps(train)}
    told = program(str(tmp_path), *(str(each) for pair in numbers.items() for each in pair))
    lines = told.splitlines()
    assert sum("EQUAL" in line for line in lines) == len(lines) > runs, told
    assert sum(int(line.split()[2]) for line in lines if "killed" in line) == kills
    assert all("lost 0, doubled 0" in line for line in lines if "killed" in line)


ADAPTERS = {"lora": True, "lora_rank": 4, "learning_rate": 0.003}


@pytest.mark.parametrize(
    "numbers",
    [
        {"ahead": 1, "runs": 1, "free": 0, "kills": 3, "steps": 3},
        pytest.param({"ahead": 1, "runs": 10, "free": 2, "kills": 100, "steps": 6}, marks=pytest.mark.full),
        pytest.param(
            {"ahead": 2, "runs": 3, "free": 1, "kills": 30, "steps": 6, "train": json.dumps(ADAPTERS)},
            marks=pytest.mark.full,
        ),
    ],
    ids=["few", "many", "adapters"],
)
def test_neither_slow_tools_nor_kills_move_a_bit_of_several_turns(tmp_path: Path, numbers: dict[str, Any]) -> None:
    options = [text for name, each in numbers.items() for text in (f"--{name}", str(each))]
    turns, *lines = program(str(tmp_path), "--tools", *options).splitlines()
    by_number = json.loads(turns.partition("turns ")[2])
    assert min(by_number["2"], by_number["3"]) >= 5, "tools were called, and the policy went on after their answers"
    assert sum("EQUAL" in line for line in lines) == len(lines) > numbers["runs"] + numbers["free"], lines
    assert sum(int(line.split()[2]) for line in lines if "killed" in line) == numbers["kills"]
    assert all("lost 0, doubled 0" in line for line in lines if "killed" in line)


@pytest.mark.full
def test_a_free_run_is_replayed_to_the_bit(complete: Run) -> None:
    free = {"mode": "free", "max_async_level": 4, "max_off_policy_steps": 4, "num_steps": 6}
    run = complete("free", "--delays", "3", **free)
    other = complete("other", "--delays", "4", **free)
    assert bits(run) != bits(other), "free runs follow from who was faster"
    again = complete("again", "--delays", "5", **{**free, "mode": "replay", "schedule": str(run)})
    assert bits(run) == bits(again)
    assert audit(run).is_right and audit(again).fates == audit(run).fates


@pytest.mark.full
def test_other_settings_in_the_same_directory_are_an_error(complete: Run, tmp_path: Path) -> None:
    complete("run", num_steps=3)
    path = tmp_path / "run" / "train.yaml"
    path.write_text(path.read_text("utf-8").replace("learning_rate: 0.003", "learning_rate: 0.004"), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "rlcore.commands", "grpo-train", str(path)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (
        done.returncode == 4 and "learning_rate of train differ (learning_rate was 0.003, and is 0.004)" in done.stderr
    ), done.stderr


def grpo(files: Mapping[str, Path]) -> "subprocess.CompletedProcess[str]":
    """Run the command of all three."""
    command = [sys.executable, "-m", "rlcore.commands", "grpo"]
    for role, path in files.items():
        command += [f"--{role}", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.full
def test_two_ranks_and_two_samplers_have_the_bits_of_one(complete: Run, tmp_path: Path) -> None:
    run = complete("one", num_steps=4)
    files = write_files(tmp_path / "two", tmp_path / "model", num_steps=4, train={"gpus": 2, "zero_level": 3})
    files["infer"].write_text(files["infer"].read_text("utf-8") + "dp: 2", "utf-8")
    done = grpo(files)
    assert bits(tmp_path / "two" / "run_default") == bits(run)
    assert "train: 2 ranks" in done.stderr, "they were two"
    assert all(f"infer.{number}: serving completions" in done.stderr for number in (0, 1))


@pytest.mark.full
def test_the_command_runs_all_three_and_leaves_none(tmp_path: Path) -> None:
    files = write_files(tmp_path / "run", make_model(tmp_path / "model"), num_steps=5)
    done = grpo(files)
    assert "train: step 4: reward_mean=" in done.stderr
    run = tmp_path / "run" / "run_default"
    assert audit(run).lines()[-1] == "every group once"
    assert steps(run / BROADCASTS)[-1] == 5
    (line, *_) = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    assert {"kl", "masked", "tokens", "loss", "grad_norm", "versions_apart", "idle", "tokens_per_s"} <= line.keys()
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in running
