"""At level invariant, where a run trains moves no bit: in one process, in several, with shards, and between them."""

from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from rlcore.checkpoint import load_newest
from tests.rlcore.deployments.recorded_runs import HERE, HYBRID, SHARDED, TWO_RANKS, options, train, verdict
from tests.support.cli_commands import type_command

pytestmark = pytest.mark.full
EQUAL = "EQUAL  3 steps, every recorded bit"
PLACES = {"one": HERE, "two": TWO_RANKS, "four": SHARDED}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of runs, which are made when a test asks for them."""
    return tmp_path_factory.mktemp("runs")


def made(runs: Path, name: str) -> str:
    """Return a run of PLACES, made once."""
    if not (runs / name).exists():
        train(runs, name, PLACES[name])
    return name


def test_a_run_of_two_ranks_is_equal_to_one_process(runs: Path) -> None:
    assert verdict(runs, made(runs, "one"), made(runs, "two")) == EQUAL


def test_a_run_of_four_shards_is_equal_to_one_process(runs: Path) -> None:
    assert verdict(runs, made(runs, "one"), made(runs, "four")) == EQUAL


def test_a_step_of_four_shards_is_reproduced_in_one_process(runs: Path) -> None:
    here = options({"deployment.backend": "in_process"})
    done = type_command(runs, "reproduce", made(runs, "four"), "--step", "2", *here)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert "REPRODUCED  step 2" in done.stdout, done.stdout


def test_one_steps_in_one_process_through_a_step_of_four_shards(runs: Path) -> None:
    (runs / "commands").write_text("next\ncontinue\n", "utf-8")
    step = ("--step", "2", "--interactive", "--commands", "commands", "--set", "deployment.backend=in_process")
    done = type_command(runs, "reproduce", made(runs, "four"), *step)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert "differs" not in done.stdout
    assert "at the end of step 2\n  its root digest is the recorded one" in done.stdout, done.stdout


def test_a_step_of_one_process_is_reproduced_by_two_ranks(runs: Path) -> None:
    done = type_command(runs, "reproduce", made(runs, "one"), "--step", "1", *options(TWO_RANKS))
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert "INCOMPLETE" not in done.stderr, "workers end in order with the last step that is wanted"


def test_the_debugger_of_two_ranks_pauses_in_the_controller_alone(runs: Path) -> None:
    (runs / "commands").write_text("next\nnext\ncontinue\n", "utf-8")
    step = ("--step", "1", "--interactive", "--commands", "commands")
    done = type_command(runs, "reproduce", made(runs, "two"), *step)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert done.stdout.count("at the beginning of step 1") == 1
    assert "at the end of step 1" in done.stdout, done.stdout


def test_a_run_begun_with_shards_is_resumed_in_one_process(runs: Path) -> None:
    resumed = {"output.resume": str(runs / made(runs, "four")), "output.resume_step": "1"}
    train(runs, "resumed", {**HERE, **resumed})
    whole, found = (load_newest(runs / name / "checkpoints") for name in (made(runs, "one"), "resumed"))
    assert whole is not None and found is not None and whole.step == found.step == 3
    assert whole.values["state"] == found.values["state"]


def test_a_critic_and_a_reference_in_two_copies_of_two_shards(tmp_path: Path) -> None:
    settings = {"algorithm.kl_coef": "0.05", "training.num_steps": "2"}
    idle = {"deployment.offload": "[policy, critic, reference]", "deployment.offload_directory": str(tmp_path)}
    train(tmp_path, "one", {**HERE, **settings}, "ppo_arithmetic")
    train(tmp_path, "four", {**HYBRID, **settings, **idle}, "ppo_arithmetic")
    assert verdict(tmp_path, "one", "four") == "EQUAL  2 steps, every recorded bit"


def test_at_level_deterministic_the_number_of_ranks_counts(tmp_path: Path) -> None:
    """The fast path sums as the library does: the claim of level invariant is not empty."""
    for out, place in (("one", {**TWO_RANKS, "deployment.num_ranks": "1"}), ("two", TWO_RANKS)):  # Ray's libraries both
        train(tmp_path, out, {**place, "runtime.token_budget": "64"}, more=("--level", "deterministic"))
    assert verdict(tmp_path, "one", "two").startswith("DIVERGED")
