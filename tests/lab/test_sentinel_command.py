"""`rlharness trace --sentinel` on programs of torchrun that nobody changed."""

import os
import sys
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.recording.sentinel_report import read_findings
from tests.support.recorded_programs import Ran, compared, program, record, run

pytest.importorskip("torch")

TORCHRUN = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--standalone", "--nproc-per-node"]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def trained(out: Path, num_ranks: int, *words: str, sentinel: str = "2", exit_code: int = 0) -> Ran:
    options = ["--sentinel", sentinel] if sentinel else []
    command = [*TORCHRUN, str(num_ranks), *program("replicas")[1:], *words]
    return record(out, command, *options, env=ONE_THREAD, exit_code=exit_code)


@pytest.mark.full
def test_a_flipped_bit_ends_the_program_and_its_ranks_are_named(tmp_path: Path) -> None:
    done = trained(tmp_path / "t", 2, "--flip", "3:1:weight:0:7", exit_code=ExitCode.DIVERGED)
    [(bundle, finding)] = read_findings(tmp_path / "t")
    assert (finding.step, [location.rank for location in finding.suspects]) == (4, [0, 1])
    assert "trained" not in done.output
    [told, shown, *_] = [line for line in done.errors.splitlines() if "sentinel: before step 4" in line]
    assert told == shown
    assert "weight 0.weight differs on one of rank 0 (" in told
    assert f"  bundle: {bundle}" in done.errors
    assert sorted(path.name for path in bundle.iterdir()) == [
        "manifest.json",
        "rank-0.safetensors",
        "rank-1.safetensors",
    ]


@pytest.mark.full
@pytest.mark.parametrize(("layout", "num_ranks"), [("ddp", 2), ("hsdp", 4)])
def test_with_the_sentinel_a_trace_has_the_bits_of_one_without(layout: str, num_ranks: int, tmp_path: Path) -> None:
    trained(tmp_path / "with", num_ranks, "--layout", layout)
    trained(tmp_path / "without", num_ranks, "--layout", layout, sentinel="")
    verdict = compared(tmp_path / "with", tmp_path / "without")
    assert (verdict["verdict"], verdict["num_steps"]) == ("equal", 8)


@pytest.mark.full
@pytest.mark.parametrize(("layout", "num_ranks", "named"), [("ddp", 3, [2]), ("hsdp", 4, [0, 2])])
def test_a_flip_goes_unnoticed_without_the_sentinel(
    layout: str, num_ranks: int, named: list[int], tmp_path: Path
) -> None:
    words = ("--layout", layout, "--flip", "3:2:weight:0:7")
    if layout == "ddp":
        done = trained(tmp_path / "off", num_ranks, *words, sentinel="")
        assert done.output.count("trained 8 steps") == num_ranks
    trained(tmp_path / "on", num_ranks, *words, exit_code=ExitCode.DIVERGED)
    [(_, finding)] = read_findings(tmp_path / "on")
    assert (finding.step, [location.rank for location in finding.suspects]) == (4, named)


@pytest.mark.full
def test_a_rank_that_dies_ends_the_program_with_its_reason(tmp_path: Path) -> None:
    done = trained(tmp_path / "t", 2, "--ends-at", "4", exit_code=1)
    assert read_findings(tmp_path / "t") == ()
    assert (
        "sentinel switched off, the program continues: not every rank came to the comparison of step 4" in done.errors
    )


@pytest.mark.full
def test_a_program_watches_its_replicas_by_two_lines_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "watched.py"
    script.write_text(
        "from harness.recording import watch_replicas\n"
        f"watch_replicas(every=2, directory={str(tmp_path)!r})\n"
        "from tests.support.programs.replicas import main\n"
        "main()\n"
    )
    done = run(*TORCHRUN, "3", str(script), "--flip", "3:2:weight:0:7", env=ONE_THREAD)
    assert done.exit_code == 1
    [(_, finding)] = read_findings(tmp_path)
    assert (finding.step, [location.rank for location in finding.suspects]) == (4, [2])


@pytest.mark.full
def test_a_step_that_is_compiled_whole_is_said_not_to_be_compared(tmp_path: Path) -> None:
    done = record(
        tmp_path / "t", program("compiled_step", "both", "--backend", "eager"), "--sentinel", "2", exit_code=12
    )
    assert (
        "sentinel: torch.compile has compiled an optimizer's step, and compiled steps are not compared" in done.errors
    )
