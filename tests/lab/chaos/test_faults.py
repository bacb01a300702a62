"""Planted faults are found, and each is shrunk to its one cause; what is sound is not accused."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.bits.exit_codes import ExitCode
from harness.render.chaos import sentence
from tests.lab.chaos.faulty_scenarios import write_scenario
from tests.lab.chaos.in_process import searched


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Faults set torch's threads, as engines do."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.full
@pytest.mark.parametrize(
    ("entry", "name", "effect"),
    [
        ("plain_matmul", "runtime.concurrency", "changes the logits of the rollout at step 1"),
        ("unsorted_arrival", "runtime.arrival_seed", "changes the prompts of the rollout at step 0"),
        ("local_denominators", "runtime.microbatch_size", "changes the gradient of weight at step 0"),
        ("full_sum", "runtime.training_threads", "changes the loss penalty at step 0"),
        ("all_reduce_in_fp32", "runtime.world_size", "changes the gradient of weight at step 0"),
        ("judges_as_they_answer", "latency", "changes the rewards at step 0"),
    ],
)
def test_a_fault_is_shrunk_to_its_one_cause(tmp_path: Path, entry: str, name: str, effect: str) -> None:
    chaos = searched(tmp_path, write_scenario(tmp_path, entry))
    assert chaos.finding is not None
    assert list(chaos.finding.perturbation) == [name]
    assert sentence(chaos).endswith(f" alone {effect}, in 3 of 3 runs")
    assert (chaos.finding.without.num_failed, chaos.finding.without.num_runs) == (0, 4)
    assert chaos.finding.is_smallest


@pytest.mark.full
def test_a_fault_that_comes_and_goes_is_shrunk_to_its_one_cause(tmp_path: Path) -> None:
    """A perturbation that shows it in one of two runs counts as harmless once in 256 times."""
    chaos = searched(tmp_path, write_scenario(tmp_path, "racing_tools"), seed=1, num_repeats=8)
    assert chaos.finding is not None
    assert list(chaos.finding.perturbation) == ["runtime.tool_threads"]
    assert chaos.finding.without.num_failed == 0
    assert chaos.finding.tally.num_runs >= 8
    said = sentence(chaos)
    assert re.match(r"runtime\.tool_threads=[234] alone changes the rewards at step \d, in [1-9]\d* of \d+ runs$", said)


def test_what_differs_from_itself_needs_no_perturbation(tmp_path: Path) -> None:
    chaos = searched(tmp_path, write_scenario(tmp_path, "own_clock"))
    assert chaos.exit_code == ExitCode.DIVERGED
    assert chaos.finding is not None
    assert sentence(chaos) == (
        "the run is nondeterministic without any perturbation: repeating it changes the actions"
        " of the rollout at step 0, in 3 of 3 runs"
    )
    assert chaos.num_probes == 0


@pytest.mark.parametrize(
    ("entry", "count"), [pytest.param("sound", 20, marks=pytest.mark.full), ("judges_in_order", 6)]
)
def test_what_is_sound_is_not_accused(tmp_path: Path, entry: str, count: int) -> None:
    chaos = searched(tmp_path, write_scenario(tmp_path, entry), num_probes=count)
    assert (chaos.exit_code, chaos.finding, chaos.num_runs) == (ExitCode.OK, None, count + 2)
    assert chaos.num_probes == count - len(chaos.not_applied)
    assert all("latency" in each.perturbation for each in chaos.not_applied)
    assert bool(chaos.not_applied) == (entry == "sound"), "nothing is judged there: no call is delayed"
    kept = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert kept == ["run-1"], "runs that are the baseline's are not kept"
