"""Whole runs: what they write, what stops them, what they go on from."""

import json
import signal
import statistics
import subprocess
import sys
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.checkpoint import CHECKSUMS, VALUES, checksum, sealed
from rlcore.entrypoint import run
from rlcore.errors import CheckpointError, InvalidValueError, NonFiniteError, RewardError
from rlcore.models.checkpoints import load
from tests.rlcore.training.recorded import Digests, Lost, config, first_difference, recorded, trained
from tests.support.run_configs import with_section

SHORT = with_section(config(), "training", {"num_steps": 3})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# ----------------------------------------------------------------------------------------------------- what it writes


def test_a_run_writes_metrics_completions_a_board_and_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = with_section(
        SHORT, "output", {"tensorboard": find_spec("tensorboard") is not None, "num_shown": 2, "evaluate_every": 2}
    )
    digests = recorded(of, tmp_path)
    steps = [line for line in lines(tmp_path / "metrics.jsonl") if "loss" in line]
    assert [line["step"] for line in steps] == [0, 1, 2]
    for name in ("reward_mean", "grad_norm", "entropy", "completion_length", "learning_rate"):
        assert all(isinstance(line[name], float) for line in steps)
    for phase in ("rollout", "reward", "update", "optimizer", "sync"):
        assert all(line[f"seconds/{phase}"] > 0 and line[f"memory_gb/{phase}"] > 0.01 for line in steps)
    evaluated = [line["step"] for line in lines(tmp_path / "metrics.jsonl") if "evaluation/reward_mean" in line]
    assert evaluated == [0, 2, 3]
    shown = lines(tmp_path / "completions.jsonl")
    assert len(shown) == 2 * 3
    assert shown[0].keys() == {"step", "prompt", "completion", "answer", "reward", "stop_reason"}
    assert any((tmp_path / "tensorboard").glob("events.*")) == (find_spec("tensorboard") is not None)
    assert load(tmp_path / "checkpoints" / "step-000003" / "policy").config.width == 32
    assert digests.curve[2].keys() == {
        "reward_mean", "loss", "gradient_norm", "kl", "entropy", "completion_length"
    }  # fmt: skip
    told = capsys.readouterr().err
    assert "before step 0: held-out reward" in told
    assert "after step 2: held-out reward" in told
    assert "prompt" in told


def test_greedy_evaluations_do_not_depend_on_the_temperature(tmp_path: Path) -> None:
    def evaluated(drawn: float, **evaluation: float) -> list[str]:
        of = config(sampling={"temperature": drawn}, training={"num_steps": 1}, evaluation=evaluation)
        leaves = recorded(of, tmp_path / f"{drawn} {evaluation}").leaves
        return [value for leaf, value in leaves.items() if leaf[2].startswith("evaluation.")]

    assert evaluated(0.5) != evaluated(2.0)
    assert evaluated(0.5, temperature=0.0) == evaluated(2.0, temperature=0.0)


@pytest.mark.parametrize("num_samples", [2, 3, 5])
def test_pass_at_k_is_the_share_of_subsets_in_which_one_passes(
    num_samples: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = config(training={"num_steps": 1}, evaluation={"num_samples": num_samples, "pass_reward": 0.1})
    found = trained(of, tmp_path).first_evaluation
    assert found is not None
    rewards = [reward or 0.0 for reward in found.scores.rewards]
    prompts = [rewards[at : at + num_samples] for at in range(0, len(rewards), num_samples)]
    assert len(prompts) == 4 and any(len({reward >= 0.1 for reward in prompt}) == 2 for prompt in prompts)
    expected = {
        k: statistics.mean(max(subset) >= 0.1 for prompt in prompts for subset in combinations(prompt, k))
        for k in (1, 2, 4)
        if k <= num_samples
    }
    assert found.pass_at == pytest.approx(expected)
    written = lines(tmp_path / "metrics.jsonl")[0]
    assert {k: written[f"evaluation/pass@{k}"] for k in expected} == found.pass_at
    told = ", ".join(f"pass@{k} {value:.3f}" for k, value in found.pass_at.items())
    assert f"held-out reward {found.reward_mean:.3f} ({told}) over 4 prompts" in capsys.readouterr().err


def test_a_ppo_run_tells_of_its_critic(tmp_path: Path) -> None:
    of = with_section(config("ppo"), "training", {"num_steps": 3})
    recorded(with_section(of, "algorithm", {"num_critic_warmup_steps": 1}), tmp_path)
    steps = [line for line in lines(tmp_path / "metrics.jsonl") if "critic_loss" in line]
    assert len(steps) == 3
    assert ["loss" in line for line in steps] == [False, True, True], "the critic learns alone at first"


def test_a_checkpoint_of_a_run_is_a_model_to_begin_with(tmp_path: Path) -> None:
    recorded(SHORT, tmp_path / "first")
    path = tmp_path / "first" / "checkpoints" / "step-000003" / "policy"
    of = with_section(with_section(SHORT, "model", {"path": str(path)}), "warm_start", {"num_steps": 0})
    state = trained(of, tmp_path / "second")
    assert state.decoder.config == load(path).config
    assert not torch.equal(state.decoder.embedding, load(path).embedding), "it has learned on"


@pytest.mark.full
def test_bfloat16_holds_the_level_too(tmp_path: Path) -> None:
    of = with_section(SHORT, "model", {"dtype": "bfloat16"})
    one = recorded(of, tmp_path / "one")
    other = recorded(with_section(of, "runtime", {"concurrency": 3, "world_size": 2}), tmp_path / "other")
    assert one.leaves
    assert first_difference(one, other) is None


def test_shuffled_rewards_are_another_run(tmp_path: Path) -> None:
    own = recorded(SHORT, tmp_path / "own")
    control = recorded(with_section(SHORT, "task", {"shuffles_rewards": True}), tmp_path / "control")
    leaf = first_difference(own, control)
    assert leaf is not None
    assert leaf[:2] == (0, "reward")


# ------------------------------------------------------------------------------------------------------ what stops it


def test_a_configuration_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    payload = {"task": {"name": "sorting"}, "algorithm": {"name": "grpo", "clip_eps": 0.1}}
    with pytest.raises(InvalidValueError, match=r"unknown key algorithm\.clip_eps(.|\n)*clip_eps_low\?"):
        run(payload, level="invariant", directory=tmp_path / "out", recorder=Digests())
    assert not (tmp_path / "out").exists()


def test_a_loss_that_explodes_stops_at_the_tensor(tmp_path: Path) -> None:
    of = with_section(SHORT, "optimizer", {"learning_rate": 1e30, "max_gradient_norm": None})
    with pytest.raises(NonFiniteError, match=r"is (nan|-?inf)"):
        recorded(of, tmp_path)


# ------------------------------------------------------------------------------------------------- what it goes on from


@pytest.mark.parametrize("device", ["nowhere", "cuda:99"])
def test_a_device_that_is_not_there_is_told(device: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=f"model.device '{device}'") as caught:
        recorded(with_section(SHORT, "model", {"device": device}), tmp_path, level="off")
    assert "cpu" in caught.value.legal


def test_a_board_without_its_package_stops_a_run_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore.entrypoint.find_spec", {}.get)
    with pytest.raises(InvalidValueError, match=r"output\.tensorboard is true") as refused:
        recorded(with_section(SHORT, "output", {"tensorboard": True}), tmp_path)
    assert refused.value.remedy == "pip install 'rlharness[tensorboard]'"
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    recorded(with_section(SHORT, "training", {"num_steps": 1}), tmp_path / "first")
    path = tmp_path / "first" / "checkpoints" / "step-000001"
    step, files = (json.loads((path / CHECKSUMS).read_bytes())[key] for key in ("step", "files"))
    values = json.loads((path / VALUES).read_bytes())
    del values["identity"]["evaluation"], values["identity"]["content"], values["identity"]["algorithm"]["entropy_coef"]
    (path / VALUES).write_text(json.dumps(values))
    (path / CHECKSUMS).write_bytes(sealed(step, {**files, VALUES: checksum(path / VALUES)}))
    resumed = with_section(SHORT, "output", {"resume": str(tmp_path / "first")})
    assert first_difference(recorded(resumed, tmp_path / "second"), recorded(SHORT, tmp_path / "whole")) is None
    with pytest.raises(CheckpointError, match=r"another run: evaluation\.num_samples differ \(.* was 1, and is 2"):
        recorded(with_section(resumed, "evaluation", {"num_samples": 2}), tmp_path / "other")
    with pytest.raises(
        CheckpointError, match=r"another run: algorithm\.entropy_coef differ \(.* was 0\.0, and is 0\.1"
    ):
        recorded(with_section(resumed, "algorithm", {"entropy_coef": 0.1}), tmp_path / "another")


def test_another_configuration_is_not_gone_on_with(tmp_path: Path) -> None:
    recorded(SHORT, tmp_path / "first")
    of = with_section(with_section(SHORT, "output", {"resume": str(tmp_path / "first")}), "training", {"group_size": 8})
    with pytest.raises(CheckpointError, match=r"another run: training\.group_size differ"):
        recorded(of, tmp_path / "second")
    with pytest.raises(CheckpointError, match="another run: level differ"):
        recorded(with_section(SHORT, "output", {"resume": str(tmp_path / "first")}), tmp_path / "third", level="off")
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        recorded(with_section(SHORT, "output", {"resume": str(tmp_path)}), tmp_path / "fourth")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "lost", "said"),
    [
        ("ppo", "trainers.trainer.Trainer.read_state", "optimizer of the critic, optimizer of the policy, weights of"),
        ("grpo", "train.TrainState.prompts_of", "next prompts differ"),
    ],
)
def test_a_state_that_is_not_the_one_that_was_written_is_not_gone_on_with(
    name: str, lost: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = with_section(with_section(config(name), "training", {"num_steps": 3}), "output", {"checkpoint_every": 1})
    with pytest.raises(Lost):
        recorded(of, tmp_path / "lost", stop_after=1)
    monkeypatch.setattr(f"rlcore.{lost}", lambda *given: [])
    with pytest.raises(CheckpointError, match=said):
        recorded(with_section(of, "output", {"resume": str(tmp_path / "lost")}), tmp_path / "again")


@pytest.mark.full
def test_a_run_may_be_made_longer(tmp_path: Path) -> None:
    whole = recorded(with_section(SHORT, "training", {"num_steps": 5}), tmp_path / "whole")
    recorded(SHORT, tmp_path / "short")
    of = with_section(with_section(SHORT, "training", {"num_steps": 5}), "output", {"resume": str(tmp_path / "short")})
    longer = recorded(of, tmp_path / "longer")
    assert sorted(longer.curve) == [3, 4]
    assert first_difference(whole, longer) is None
    scheduled = with_section(of, "optimizer", {"schedule": "linear"})
    with pytest.raises(CheckpointError, match=r"optimizer\.schedule"):
        recorded(scheduled, tmp_path / "scheduled")


@pytest.mark.full
def test_a_process_that_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    """SIGKILL from outside at a step's end, then another process."""
    code = (
        "import os, pathlib, signal, sys, torch; torch.set_num_threads(1)\n"
        "from tests.rlcore.training.recorded import Digests, Lost, config\n"
        "from tests.support.run_configs import with_section\n"
        "from rlcore.entrypoint import train\n"
        "of = with_section(config(), 'output', {'checkpoint_every': 2})\n"
        "try: train(of, level='invariant', directory=pathlib.Path(sys.argv[1]), recorder=Digests(stop_after=7))\n"
        "except Lost: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "lost")], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    whole = recorded(config(), tmp_path / "whole")
    found = recorded(with_section(config(), "output", {"resume": str(tmp_path / "lost")}), tmp_path / "resumed")
    assert sorted(found.curve) == list(range(6, 20))
    assert first_difference(whole, found) is None


def test_a_damaged_checkpoint_is_told_and_the_one_before_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = with_section(SHORT, "output", {"checkpoint_every": 1, "keep_checkpoints": 3})
    with pytest.raises(Lost):
        recorded(with_section(of, "training", {"num_steps": 6}), tmp_path / "lost", stop_after=3)
    newest = tmp_path / "lost" / "checkpoints" / "step-000003" / "policy_state" / "state.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[-1] ^= 1
    newest.write_bytes(damaged)
    again = with_section(with_section(of, "training", {"num_steps": 6}), "output", {"resume": str(tmp_path / "lost")})
    found = recorded(again, tmp_path / "resumed")
    assert min(found.curve) == 2
    told = capsys.readouterr().err
    assert "step-000003" in told
    assert "step 2 from" in told


def judges_nothing(completions: list[str], **_: Any) -> list[None]:
    return [None] * len(completions)


def leaves(completions: list[str], **_: Any) -> list[float]:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("name", "told"),
    [("judges_nothing", "judges_nothing returned no reward for 4"), ("leaves", "leaves(.|\n)*SystemExit")],
)
def test_a_reward_function_that_does_not_judge_is_named(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(RewardError, match=told):
        recorded(with_section(SHORT, "task", {"rewards": (f"{__name__}:{name}",)}), tmp_path)


def test_a_run_that_has_ended_is_told_so(tmp_path: Path) -> None:
    recorded(SHORT, tmp_path / "first")
    with pytest.raises(CheckpointError, match="has all 3 steps"):
        recorded(with_section(SHORT, "output", {"resume": str(tmp_path / "first")}), tmp_path / "second")


@pytest.mark.parametrize(("section", "key"), [("model", "path"), ("output", "resume")])
def test_directories_that_do_not_exist_are_told_before_anything_is_written(
    section: str, key: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValueError, match=rf"{section}\.{key} 'nowhere'"):
        recorded(with_section(SHORT, section, {key: "nowhere"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
