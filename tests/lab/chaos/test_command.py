"""`rlharness chaos` as it is typed: processes that are changed from outside, killed, gone on from, and interrupted."""

import json
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from tests.lab.chaos.faulty_scenarios import write_scenario
from tests.support.cli_commands import PATIENCE_S, Done, type_command
from tests.support.suite_runs import started

pytest.importorskip("torch")
PROGRAM = """\
import torch

weight = torch.nn.Parameter(torch.zeros(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
words = list({"apple", "pear", "plum", "quince", "fig", "lemon"})
for step in range(2):
    sizes = torch.tensor([float(len(word)) for word in words])
    loss = (weight * sizes[:3]).sum() + sum(sizes * 0.1)
    loss.backward()
    optimizer.step()
"""


def chaos(directory: Path, *words: str) -> Done:
    return type_command(directory, "chaos", *words)


def finding(done: Done) -> dict[str, Any]:
    """Of its JSON."""
    found = json.loads(done.stdout)["finding"]
    assert isinstance(found, dict), done.stdout + done.stderr
    return found


def again(directory: Path, reproduce: str) -> Done:
    """The command that a finding ends with, typed."""
    return chaos(directory, *reproduce.removeprefix("rlharness chaos ").split(), "--json")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_crash_finds_a_generator_that_no_checkpoint_holds_and_its_command_shows_it_again(tmp_path: Path) -> None:
    name = write_scenario(tmp_path, "forgotten_generator")
    words = ("--factors", "crash,runtime.world_size", "--seed", "34", "--repeats", "1")
    done = chaos(tmp_path, name, *words, "--json")
    assert done.code == ExitCode.DIVERGED, done.stdout + done.stderr
    found = finding(done)
    sentence = "a crash (crash=3.end) alone changes the actions of the rollout at step 3, in 1 of 1 run"
    assert found["sentence"] == sentence
    assert found["reproduce"] == "rlharness chaos forgotten_generator --only crash=3.end"
    shown = again(tmp_path, found["reproduce"])
    assert shown.code == ExitCode.DIVERGED
    assert finding(shown)["sentence"] == found["sentence"]
    assert finding(shown)["verdict"]["first"] == found["verdict"]["first"]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_order_of_a_set_is_the_hash_seeds_doing_alone(tmp_path: Path) -> None:
    name = write_scenario(tmp_path, "set_order")
    done = chaos(tmp_path, name, "--factors", "hash_seed,runtime.concurrency", "--repeats", "1")
    assert done.code == ExitCode.DIVERGED, done.stdout + done.stderr
    cause = r"DIVERGED  the hash seed \(hash_seed=(\d+)\) alone changes the prompts of the rollout at step 0, in 1 of 1"
    found = re.match(cause, done.stdout)
    assert found, done.stdout
    assert re.search(rf"^      hash_seed +A 0  B {found[1]}$", done.stdout, re.MULTILINE), done.stdout
    assert f"reproduce: rlharness chaos set_order --only hash_seed={found[1]}\n" in done.stdout


@pytest.mark.full
@pytest.mark.timeout(900)
def test_somebodys_program_is_perturbed_from_outside(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    program = ("--", sys.executable, "train.py")
    done = chaos(tmp_path, "--factors", "hash_seed,threads", "--repeats", "1", "--json", *program)
    assert done.code == ExitCode.DIVERGED, done.stdout + done.stderr
    assert list(finding(done)["perturbation"]) == ["hash_seed"]
    seed = finding(done)["perturbation"]["hash_seed"]
    assert finding(done)["reproduce"].endswith(f"--only hash_seed={seed} -- {sys.executable} train.py")
    harmless = chaos(tmp_path, "--only", "threads=2", "--repeats", "1", *program)
    assert harmless.code == ExitCode.OK, harmless.stdout + harmless.stderr
    assert harmless.stdout.startswith("NOTHING FOUND  no bit changed in 3 runs with threads=2")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_function_that_is_not_there_cannot_be_let_wait(tmp_path: Path) -> None:
    name = write_scenario(tmp_path, "sound")
    path = tmp_path / "scenarios" / f"{name}.yaml"
    path.write_text(path.read_text("utf-8").replace("faulty_entries:ask]", "faulty_entries:asks]"), "utf-8")
    done = chaos(tmp_path, name, "--only", "latency=1", "--steps", "1")
    assert done.code == ExitCode.USAGE_ERROR, done.stdout + done.stderr
    said = "chaos.latency tests.lab.chaos.faulty_entries:asks: tests.lab.chaos.faulty_entries has no function asks"
    assert f"the entry refuses to begin with latency=1: {said}" in done.stderr
    assert "sound" in done.stderr.partition("legal:")[2]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_an_interruption_keeps_what_is_known_and_leaves_nothing_running(tmp_path: Path) -> None:
    name = write_scenario(tmp_path, "sound")
    with started(tmp_path, "chaos", name, "--factors", "threads", "--out", "t") as process:
        while process.poll() is None and not (tmp_path / "t" / "run-3").exists():
            time.sleep(0.01)  # the test's own limit ends a wait that is too long
        process.send_signal(signal.SIGINT)
        said, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.INTERRUPTED, told
    assert "interrupted by SIGINT after 3 runs" in said
