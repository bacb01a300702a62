"""Options of asynchronous GRPO, each switched on alone: what the benchmark of all of them sees, for three."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.asynchronous_options import OPTIONS, NoEffectError, Run, chosen, directory_of, observe

NAMES = ("loss.kl_tau", "sampling.temp_scheduler", "eval")


@pytest.mark.full
def test_an_option_that_is_ignored_is_an_error_and_so_is_one_of_the_runtime_that_moves_bits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.asynchronous_options", *NAMES, "--directory", str(tmp_path / "runs")],
        env={**os.environ, "MKL_CBWR": "AUTO"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    options = chosen(NAMES)
    assert [line.partition(": ")[2] for line in done.stdout.splitlines()] and len(options) == 3
    runs = {name: Run(tmp_path / "runs" / directory_of(name)) for name in ("", *(each.name for each in options))}
    for option in options:
        assert f"{option.name}: {observe(option, runs[option.name], runs[''])}" in done.stdout.splitlines()
        ignored = runs[""] if option.moves_bits else runs[options[0].name]
        with pytest.raises(NoEffectError, match="the option is"):
            observe(option, ignored, runs[""])
    with pytest.raises(NoEffectError, match="temperatures"):
        observe(options[1], runs[options[0].name], runs[""])


def test_an_option_is_run_with_those_that_it_is_compared_with() -> None:
    assert [each.name for each in chosen(["sequence_clip"])] == ["loss.ratio_type: sequence", "loss.sequence_clip_high"]
    assert chosen([]) == [*OPTIONS]
    names = ["", *(each.name for each in OPTIONS)]
    assert all(names.index(each.against) < names.index(each.name) for each in OPTIONS)
    assert len({*map(directory_of, names)}) == len(names)
