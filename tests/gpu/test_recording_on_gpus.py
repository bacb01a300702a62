"""A training on a GPU, recorded: equal in pairs, no bit of it changed, digested where it lies."""

from pathlib import Path

import pytest

from harness.trace import read_trace
from tests.support.recorded_programs import compared, program, record, run

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpus(1),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


def test_two_runs_are_equal_and_recording_changes_no_bit(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    command = program("on_gpu", "--weights", str(weights))
    saved = []
    assert run(*command).exit_code == 0
    saved.append(torch.load(weights))
    for name in ("a", "b"):
        record(tmp_path / name, command, "--level", "deterministic")
    assert compared(tmp_path / "a", tmp_path / "b")["verdict"] == "equal"
    record(tmp_path / "c", command)
    saved.append(torch.load(weights))
    plain, recorded = saved
    assert all(torch.equal(plain[name], recorded[name]) for name in plain)


def test_large_values_are_digested_on_the_card(tmp_path: Path) -> None:
    record(tmp_path / "a", program("on_gpu"))
    recorded_values = read_trace(tmp_path / "a").ranks[0].columns(1).values()
    by_name = {(recorded_value.phase, recorded_value.name): recorded_value for recorded_value in recorded_values}
    assert by_name["backward", "0.weight"].algorithm == "shardsum_128"
    assert by_name["optimizer", "0.weight exp_avg"].algorithm == "shardsum_128"
    assert by_name["loss", "loss"].algorithm == "raw"
    assert ("rollout", "random.cuda0") in by_name


def test_operations_of_a_step_are_recorded_and_change_nothing(tmp_path: Path) -> None:
    command = program("on_gpu")
    record(tmp_path / "a", command, "--level", "deterministic")
    record(tmp_path / "b", command, "--level", "deterministic", "--trace-ops", "3")
    assert compared(tmp_path / "a", tmp_path / "b")["verdict"] == "equal"
    assert (tmp_path / "b" / "ops" / "rank-0-step-3.jsonl").stat().st_size > 0
