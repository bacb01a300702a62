"""Runs with vLLM as a user types them: spread over many processes, from an empty cache, and with engines that die."""

import re
from functools import partial
from pathlib import Path

import psutil
import pytest

from harness.bits.exit_codes import ExitCode
from tests.rlcore.deployments.recorded_runs import SMALL as RECORDED
from tests.rlcore.deployments.recorded_runs import await_true, num_steps_of, options, processes_of, train_and_kill
from tests.support.cli_commands import type_command
from tests.support.vllm_engines import need_vllm

need_vllm()
pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
SMALL = ("--size", "tiny", "--set", "training.num_steps=2", "--set", "output.checkpoint_every=1")
UNSET = {"VLLM_BATCH_INVARIANT": ""}  # engines of this process have set it
SPREAD = {
    "deployment.backend": "ray",
    "deployment.num_ranks": "2",
    "deployment.sharding": "full",
    "sampler.name": "vllm",
    "sampler.replicas": "2",
}
WHOLE = {**RECORDED, "training.num_steps": "12"}
SERVED = {"sampler.name": "vllm", "training.num_steps": "12"}


def test_a_run_on_ray_with_shards_and_two_engines_is_equal_to_one_process(tmp_path: Path) -> None:
    local = type_command(tmp_path, "train", "grpo_reverse_text", "--out", "local", *SMALL, **UNSET)
    train = ("train", "grpo_reverse_text", "--out", "spread", *SMALL, *options(SPREAD))
    spread = type_command(tmp_path, *train, **UNSET)
    assert (local.code, spread.code) == (ExitCode.OK, ExitCode.OK), local.stderr + spread.stderr
    found = type_command(tmp_path, "diff", "local", "spread")
    assert found.code == ExitCode.OK and found.stdout.startswith("EQUAL  2 steps, every recorded bit"), found.stdout
    here = options({"deployment.backend": "in_process", "sampler.name": "torch"})
    again = type_command(tmp_path, "reproduce", "spread", "--step", "1", *here, **UNSET)
    assert again.code == ExitCode.OK, again.stdout + again.stderr


@pytest.mark.parametrize("more", [(), ("--level", "deterministic", "--set", "sampler.model=stock")])
def test_models_of_vllm_start_with_an_empty_cache(more: tuple[str, ...], tmp_path: Path) -> None:
    """vLLM then starts a child that inspects the model, with the engine's variables and not with those of the level."""
    cache = tmp_path / "cache"
    train = ("train", "grpo_reward_model", "--out", "a", "--size", "tiny", "--set", "training.num_steps=1", *more)
    done = type_command(tmp_path, *train, VLLM_CACHE_ROOT=str(cache), PYTHONHASHSEED="0", **UNSET)
    assert done.code == ExitCode.OK, done.stderr
    assert list((cache / "modelinfos").iterdir()), "the child has run"


def kill_an_engine(out: Path, num_kills: int) -> None:
    """Kill one of the two engines of a run, and again one of those after a restart; the other one has to end too."""
    for number in range(num_kills):
        await_true(lambda number=number: num_steps_of(out) > 2 + 3 * number, "steps")  # type: ignore[misc]
        trainers = [psutil.Process(pid) for pid, line in processes_of(out).items() if "scenario_main" in line]
        children = [child for each in trainers for child in each.children()]
        engines = [each for each in children if "EngineCore" in each.name() or "spawn_main" in " ".join(each.cmdline())]
        assert len(engines) == 2, children
        engines[0].kill()
        assert not psutil.wait_procs(engines, timeout=60)[1], "both have ended"


def test_an_engine_that_is_killed_is_restarted_and_no_bit_moves(tmp_path: Path) -> None:
    restart = {"deployment.on_worker_death": "restart", "deployment.max_restarts": "2", "sampler.replicas": "2"}
    done = train_and_kill(tmp_path, "killed", {**SERVED, **restart}, partial(kill_an_engine, num_kills=2))
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert "restart 2 of 2 from the last checkpoint: WorkerDiedError: the sampler's process" in done.stderr
    whole = type_command(
        tmp_path, "train", "grpo_reverse_text", "--out", "whole", "--size", "tiny", *options(WHOLE), **UNSET
    )
    assert whole.code == ExitCode.OK, whole.stderr
    found = type_command(tmp_path, "diff", "whole", "killed")
    assert found.stdout.startswith("EQUAL  12 steps, every recorded bit"), found.stdout


def test_an_engine_that_is_killed_ends_the_run_with_its_name_and_the_way_on(tmp_path: Path) -> None:
    settings = {**SERVED, "sampler.replicas": "2"}
    done = train_and_kill(tmp_path, "killed", settings, partial(kill_an_engine, num_kills=1))
    assert done.code != ExitCode.OK
    assert re.search(r"^error: the sampler's process, pid \d+, was killed by SIGKILL", done.stderr, re.M), done.stderr
    assert "--set output.resume=RUN" in done.stderr, done.stderr
    assert re.search(r"reproduce killed --step \d+ --trace-ops|output.resume=killed", done.stderr), done.stderr
