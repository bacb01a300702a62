"""Unmodified programs: recorded, equal in pairs where they are deterministic, not a bit of them changed; and diseases
planted from outside, named at their step, phase and parameter.
"""

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.recording.run_spec import PROCESSES, Report
from harness.trace import read_trace
from harness.trace.format import Scope
from harness.trace.ops import read_ops
from tests.support.recorded_programs import NEEDS_PEERS, PEERS, PROGRAMS, compared, place, program, record, run, told
from tests.support.verified import verify

TORCHRUN = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--standalone", "--nproc-per-node", "2"]
NEEDS_TWO_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core: threads take turns, and nothing differs"
)


def command_of(name: str, directory: Path) -> list[str]:
    if name == "trainer":
        return program(name, "--out", str(directory / "out"), python=PEERS)
    return program(name)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "num_steps", "some_leaves"),
    [
        (
            "classifier",
            16,
            {("rollout", "batch.0"), ("backward", "layers.1.weight"), ("optimizer", "head.bias exp_avg")},
        ),
        pytest.param(
            "ppo",
            32,
            {("loss", "loss"), ("backward", "critic.4.bias"), ("optimizer", "group0.lr")},
            marks=pytest.mark.full,
        ),
        pytest.param(
            "trainer",
            8,
            {("rollout", "batch.input_ids"), ("backward", "model.layers.1.mlp.up_proj.weight")},
            marks=[NEEDS_PEERS, pytest.mark.full],
        ),
    ],
)
def test_two_runs_are_equal_and_recording_changes_no_bit(
    name: str, num_steps: int, some_leaves: set[tuple[str, str]], tmp_path: Path
) -> None:
    weights = [tmp_path / f"{index}.pt" for index in range(3)]
    commands = [[*command_of(name, tmp_path), "--weights", str(each)] for each in weights]
    with ThreadPoolExecutor() as pool:
        plain_run = pool.submit(run, *commands[0])
        list(pool.map(lambda index: record(tmp_path / f"trace{index}", commands[index]), (1, 2)))
    assert plain_run.result().exit_code == 0
    plain, *others = (torch.load(each) for each in weights)
    for other in others:
        assert plain.keys() == other.keys()
        assert all(torch.equal(plain[key], other[key]) for key in plain)

    trace = read_trace(tmp_path / "trace1")
    assert (trace.gaps, verify(trace), len(trace.steps)) == ((), [], num_steps)
    recorded_values = trace.ranks[0].columns(num_steps - 1).values()
    assert {(recorded_value.phase, recorded_value.name) for recorded_value in recorded_values} >= some_leaves
    verdict = compared(tmp_path / "trace1", tmp_path / "trace2")
    # The commands differ in where they save, and their identities with them; their bits do not.
    assert (verdict["num_steps"], verdict["num_steps_different"], verdict["first"]) == (num_steps, 0, None)


@dataclass(frozen=True)
class Trainings:
    """TRL's GRPOTrainer: not recorded, recorded twice, and once with a bit that is planted in step 1."""

    directory: Path
    output: str

    @staticmethod
    def run(directory: Path) -> "Trainings":
        def command(name: str) -> list[str]:
            arguments = ["--out", str(directory / f"out-{name}"), "--weights", str(directory / f"{name}.pt")]
            return program("plant", "grpo.py", *arguments, python=PEERS)

        with ThreadPoolExecutor(2) as pool:
            plain = pool.submit(run, *command("plain"))
            plants = {"a": "none", "b": "none", "sick": "bit:1"}
            options = {"a": [], "b": ["--trace-ops", "0"], "sick": []}
            done = list(
                pool.map(lambda n: record(directory / n, command(n), *options[n], env={"PLANT": plants[n]}), plants)
            )
        assert plain.result().exit_code == 0
        return Trainings(directory, done[0].output)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Trainings:
    return Trainings.run(tmp_path_factory.mktemp("grpo"))


@pytest.mark.full
@NEEDS_PEERS
def test_a_grpo_trainer_is_recorded_with_its_rollouts_and_no_bit_of_it_changed(trainings: Trainings) -> None:
    plain, *others = (torch.load(trainings.directory / f"{name}.pt") for name in ("plain", "a", "b"))
    assert all(torch.equal(plain[key], other[key]) for other in others for key in plain)
    trace = read_trace(trainings.directory / "a")
    assert (trace.gaps, verify(trace), len(trace.steps)) == ((), [], 4)
    recorded_values = {
        (recorded_value.phase, recorded_value.name) for recorded_value in trace.ranks[0].columns(3).values()
    }
    assert recorded_values >= {("rollout", "completion_ids"), ("reward", "rewards"), ("advantage", "advantages")}
    verdict = compared(trainings.directory / "a", trainings.directory / "b")
    assert (verdict["num_steps"], verdict["num_steps_different"], verdict["first"]) == (4, 0, None)


@pytest.mark.full
@NEEDS_PEERS
def test_operations_of_generation_rewards_and_advantages_are_recorded(trainings: Trainings) -> None:
    """The trainer's functions stand below wrappers of ours, which record what they return."""
    found = read_ops(trainings.directory / "b", 0, 0)
    assert found is not None and found.problem == ""
    by_function = {each.via.rpartition(" ")[2] for each in found.operations if "grpo_trainer.py" in each.via}
    assert by_function >= {"_calculate_rewards", "_generate_and_score_completions", "_generate_single_turn"}
    assert any("_sample" in each.via for each in found.operations)


@pytest.mark.full
@NEEDS_PEERS
def test_the_curve_is_what_a_trainer_logs(trainings: Trainings) -> None:
    curve = read_trace(trainings.directory / "a").curve
    printed = re.findall(r"'reward': '([^']+)'", trainings.output)
    assert [f"{point.values['reward_mean'].value():.4g}" for point in curve] == printed
    assert set(curve[0].values) >= {"loss", "gradient_norm", "entropy", "completion_length", "learning_rate"}
    assert not [name for name in curve[0].values if "time" in name or "per_second" in name]


@pytest.mark.full
@NEEDS_PEERS
def test_what_a_wrong_bit_did_to_completions_and_rewards_is_told(trainings: Trainings) -> None:
    a, sick = trainings.directory / "a", trainings.directory / "sick"
    assert place(compared(a, sick)) == (1, "backward", "model.layers.0.self_attn.k_proj.weight")
    told_counts = r"floats only; unchanged: \d+ tokens, 16 rewards, 16 signs of advantages"
    assert re.search(told_counts, told(a, sick))


@pytest.mark.full
@NEEDS_PEERS
def test_the_curve_is_what_a_program_prints_and_writes_for_tensorboard(tmp_path: Path) -> None:
    command = program("ppo", "--log", str(tmp_path / "board"), python=PEERS)
    record(tmp_path / "trace", command, "--metric", r"mean_return=return=(\S+)")
    curve = read_trace(tmp_path / "trace").curve
    logged = [point.values for point in curve if "mean_return" in point.values]
    assert len(logged) == 4
    # printed with four digits; given to TensorBoard as it is
    assert [f"{v['charts/episodic_return'].value():.4f}" for v in logged] == [
        f"{v['mean_return'].value():.4f}" for v in logged
    ]


# ---------------------------------------------------------------------------------------------------------- diseases


def pair(tmp_path: Path, command: list[str], *options: str, a: dict[str, str], b: dict[str, str]) -> dict[str, Any]:
    with ThreadPoolExecutor() as pool:  # most of a run is importing torch, on one core
        list(pool.map(lambda side: record(tmp_path / side[0], command, *options, env=side[1]), (("a", a), ("b", b))))
    return compared(tmp_path / "a", tmp_path / "b")


def test_a_bit_planted_in_one_gradient_is_named_exactly(tmp_path: Path) -> None:
    command = program("plant", "classifier.py")
    verdict = pair(tmp_path, command, "--save-tensors", "7", a={"PLANT": "none"}, b={"PLANT": "bit:7"})
    assert verdict["verdict"] == "diverged"
    assert place(verdict) == (7, "backward", "layers.1.weight")
    value = verdict["first"]["value"]
    assert (value["num_elements"], value["num_different"], value["first"]) == (64 * 64, 1, 3 * 64 + 4)
    assert value["max_ulp"] == 1 << 12
    assert verdict["first"]["last_equal"]["name"] == "layers.0.bias"
    text = told(tmp_path / "a", tmp_path / "b")
    assert "backward layers.1.weight" in text
    assert "4,096 ulp" in text


def culprit(verdict: dict[str, Any]) -> tuple[str, str]:
    """(operation, source line) of the first that makes something else out of equal inputs."""
    found = verdict["operations"]["first"]
    assert all(found["inputs_equal"])
    return found["a"]["name"], found["a"]["at"].split(" ")[0].rpartition("/")[2]


def line_of(name: str, text: str) -> str:
    """file:line of the one line of a program that holds this text."""
    lines = (PROGRAMS / f"{name}.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if text in line]
    return f"{name}.py:{number}"


@pytest.mark.full
@pytest.mark.parametrize("disease", ["unseeded_sampler", "set_order"])
def test_another_order_of_the_data_is_seen_in_the_first_batch(disease: str, tmp_path: Path) -> None:
    verdict = pair(
        tmp_path,
        program("plant", "classifier.py"),
        a={"PLANT": disease, "PYTHONHASHSEED": "1"},
        b={"PLANT": disease, "PYTHONHASHSEED": "2"},
    )
    assert (verdict["verdict"], place(verdict)) == ("diverged", (0, "rollout", "batch.0"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("disease", "expected"),
    [
        ("average:1", (2, "forward", "Sequential.0.weight")),  # it is seen by the next step
        ("statistics:1", (1, "forward", "1.running_mean")),
    ],
)
def test_what_no_optimizer_knows_counts_too(disease: str, expected: tuple[int, str, str], tmp_path: Path) -> None:
    sick = {"PLANT": disease}
    verdict = pair(tmp_path, program("plant", "averaged.py"), a=sick, b=sick)
    assert (verdict["verdict"], place(verdict)) == ("diverged", expected)


@pytest.mark.full
def test_the_order_of_sets_is_held_by_the_hash_seed(tmp_path: Path) -> None:
    seeded = {"PLANT": "set_order", "PYTHONHASHSEED": "1"}
    assert pair(tmp_path, program("plant", "classifier.py"), a=seeded, b=seeded)["verdict"] == "equal"


@pytest.mark.full
@NEEDS_TWO_CORES
def test_threads_are_seen_where_they_first_matter(tmp_path: Path) -> None:
    """The orthogonal start of a layer is a QR decomposition, and that is another one with two threads."""
    command = program("ppo", "--updates", "1")
    verdict = pair(tmp_path, command, "--trace-ops", "0", a={"OMP_NUM_THREADS": "1"}, b={"OMP_NUM_THREADS": "2"})
    assert (verdict["verdict"], place(verdict)) == ("diverged", (0, "forward", "critic.2.weight"))
    assert culprit(verdict) == ("aten.linalg_qr.default", line_of("ppo", "nn.init.orthogonal_(linear.weight"))
    assert [each["name"] for each in verdict["fingerprints"]["perturbation"]] == ["variable OMP_NUM_THREADS"]


@pytest.mark.full
@NEEDS_TWO_CORES
def test_sums_in_any_order_are_seen_in_backward(tmp_path: Path) -> None:
    two = {"OMP_NUM_THREADS": "2"}
    verdict = pair(tmp_path, program("indexed"), "--trace-ops", "0", a=two, b=two)
    assert (verdict["verdict"], place(verdict)) == ("diverged", (0, "backward", "table"))
    assert culprit(verdict) == ("aten.index_put.default", line_of("indexed", "self.table[words]"))
    single = tmp_path / "single"
    single.mkdir()
    one = {"OMP_NUM_THREADS": "1"}
    assert pair(single, program("indexed"), a=one, b=one)["verdict"] == "equal"


# --------------------------------------------------------------------------------------------------- other processes


@pytest.mark.full
def test_ranks_of_torchrun_have_a_log_each(tmp_path: Path) -> None:
    command = [*TORCHRUN, *program("two_ranks")[1:]]
    assert pair(tmp_path, command, a={}, b={})["verdict"] == "equal"
    trace = read_trace(tmp_path / "a")
    assert (sorted(trace.ranks), trace.gaps) == ([0, 1], ())
    names = {
        recorded_value.name
        for recorded_value in trace.ranks[1].columns(0).values()
        if recorded_value.phase == "backward"
    }
    assert names == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.full
def test_the_rank_that_differed_first_is_named(tmp_path: Path) -> None:
    """What its model gets is another before gradients are averaged; afterwards both ranks differ."""
    command = [*TORCHRUN, *program("plant", "two_ranks.py")[1:]]
    verdict = pair(tmp_path, command, a={"PLANT": "none"}, b={"PLANT": "noise:3"})
    assert (verdict["verdict"], place(verdict)) == (
        "diverged",
        (3, "rollout", "batch.DistributedDataParallel.0"),
    )
    assert (verdict["first"]["rank"], verdict["first"]["ranks"]) == (1, [0, 1])
    assert "rank 1" in told(tmp_path / "a", tmp_path / "b").splitlines()[0]


@pytest.mark.full
def test_parts_of_sharded_weights_add_up_whatever_the_number_of_ranks(tmp_path: Path) -> None:
    """Every rank sees the same data, and half of twice a gradient is the gradient; a third of thrice is not."""
    command = [*TORCHRUN[:2], *program("sharded")[1:]]
    with ThreadPoolExecutor() as pool:
        envs = {n: {"PET_NPROC_PER_NODE": str(n), "OMP_NUM_THREADS": "1"} for n in (1, 2, 3)}
        list(pool.map(lambda n: record(tmp_path / f"{n}", command, env=envs[n]), envs))
    assert sorted(read_trace(tmp_path / "2").ranks) == [0, 1]
    recorded_values = read_trace(tmp_path / "2").ranks[1].columns(1).values()
    assert [recorded_value.scope for recorded_value in recorded_values if recorded_value.name == "0.weight"] == [
        Scope.PHYSICAL,
        Scope.SHARD,
        Scope.SHARD,
    ]
    assert compared(tmp_path / "1", tmp_path / "2")["verdict"] == "equal"
    verdict = compared(tmp_path / "1", tmp_path / "3")
    assert (verdict["verdict"], place(verdict)[:2]) == ("diverged", (0, "backward"))


@pytest.mark.full
def test_ray_actors_have_a_log_each(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    record(tmp_path / "a", program("ray_actors"))
    record(tmp_path / "b", program("ray_actors"))
    assert sorted(read_trace(tmp_path / "a").ranks) == [0, 1]
    assert compared(tmp_path / "a", tmp_path / "b")["verdict"] == "equal"


@pytest.mark.full
def test_children_without_a_rank_are_matched_whoever_comes_first(tmp_path: Path) -> None:
    verdict = pair(tmp_path, program("spawned"), a={"FIRST": "0"}, b={"FIRST": "1"})
    assert (verdict["verdict"], verdict["num_ranks"], verdict["num_steps"]) == ("equal", 2, 3)
    a, b = (read_trace(tmp_path / name) for name in "ab")
    assert a.unranked == b.unranked == (0, 1)
    assert a.ranks[0].heads[0].root == b.ranks[1].heads[0].root != a.ranks[1].heads[0].root
    assert "(process of A, process of B) (0, 1), (1, 0)" in told(tmp_path / "a", tmp_path / "b")


@pytest.mark.full
def test_workers_of_a_loader_record_nothing_of_their_own(tmp_path: Path) -> None:
    assert pair(tmp_path, program("classifier", "--workers", "2"), a={}, b={})["verdict"] == "equal"
    assert sorted(read_trace(tmp_path / "a").ranks) == [0]
    reports = [Report.parse(path.read_text()) for path in (tmp_path / "a" / PROCESSES).glob("*.json")]
    assert [(report.rank, report.num_steps, report.is_closed) for report in reports] == [(0, 16, True)]


@pytest.mark.full
def test_two_threads_that_train_are_refused_and_run_on(tmp_path: Path) -> None:
    done = record(tmp_path / "a", program("threads"), exit_code=12)
    assert done.output == "both trained\n"
    assert "two threads train at once in one process" in done.errors
    assert "thread.join()" in done.errors
