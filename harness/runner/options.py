"""Options of one run: the command line overrides the configuration, which overrides the defaults."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from harness.process.invocation import Invocation
from harness.runner.schedule.packing import Shard

if TYPE_CHECKING:
    from harness.runner.need import NeedRule
    from harness.runner.records.recorded_run import RecordedRun

DEFAULT_TIMEOUT_S = 1800.0
DEFAULT_GRACE_S = 10.0
DEFAULT_SLOW_S = 60.0
DEFAULT_COLLECT_TIMEOUT_S = 120.0
STOPPING = frozenset(("-x", "--exitfirst", "--maxfail", "--sw", "--stepwise"))
"""Options of pytest that end a file at a failure."""
BY_OUTCOME = STOPPING | {"--lf", "--last-failed"}
"""Options of pytest under which the outcomes of tests decide which of a file's tests run."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `run` and `plan`; see `rlharness run --help` for what each does."""

    invocation: Invocation
    root: Path
    """Directory of the configuration, else the working directory."""
    results_dir: Path | None = None
    """Directory of `.rlharness`; None for `root`."""
    paths: tuple[str, ...] = ()
    gpus: str = "auto"
    ray: str | None = None
    """Address of a Ray cluster on whose nodes the tests run; None for this machine."""
    wait_s: float = 0.0
    """How long to wait for GPUs that others use."""
    shard: Shard | None = None
    """Part of the collected units to run; None for all."""
    resume: "RecordedRun | None" = None
    """The run whose passed units are kept."""
    isolate: str = "file"
    """What has a process of its own: "file" or "test", a fork of the session that has collected the suite, or
    "interpreter", one started for each file."""
    cpu_units: int = 1
    timeout_s: float = DEFAULT_TIMEOUT_S
    grace_s: float = DEFAULT_GRACE_S
    slow_s: float = DEFAULT_SLOW_S
    collect_timeout_s: float = DEFAULT_COLLECT_TIMEOUT_S
    retries: int = 0
    """How often a failing unit is run again."""
    check_leaning: bool = False
    """Run a failing file once more, after the files before it, to see whether it leans on them."""
    accepts_leaning: bool = False
    """Whether a leaning file is no failure."""
    maxfail: int = 0
    """Failing units after which no further unit starts; 0 for no limit."""
    needs: "tuple[NeedRule, ...]" = ()
    """Rules of the configuration, then of `--needs`: the last match wins."""
    workers_per_gpu: int = 0
    """Files without a need that share each GPU; 0 for none."""
    allow_missing_gpus: bool = False
    mix_models: bool = False
    split: bool = True
    """Run a file in parts where it would end long after the others."""
    by_number: bool = False
    """Name GPUs in CUDA_VISIBLE_DEVICES by NVML's numbers, not by UUIDs."""
    history_free: bool = False
    containment: str = "auto"
    events_file: Path | None = None
    junit_file: Path | None = None
    json: bool = False
    keep_tmp: bool = False
    live: bool = False
    """Whether the display is redrawn in place."""
    colour: bool = False
    safe_path: bool = False
    """Start pytest without the working directory on its import path."""

    @property
    def results_root(self) -> Path:
        """Directory of `.rlharness`."""
        return self.results_dir or self.root


def runs_parts_of_files(pytest_args: Sequence[str]) -> bool:
    """Return whether pytest's arguments select some tests of a file, so that its duration is not measured."""
    return selects_by_outcome(pytest_args) or selects_tests(pytest_args)


def selects_by_outcome(pytest_args: Sequence[str]) -> bool:
    """Return whether outcomes decide which tests of a file run, so that it has to run in one process."""
    return bool({arg.partition("=")[0] for arg in pytest_args} & BY_OUTCOME)


def selects_tests(pytest_args: Sequence[str]) -> bool:
    """Return whether pytest's arguments select tests by -k, -m or --deselect; an empty expression selects all."""
    expressions = {"-k": "", "-m": ""}
    for arg, following in pairwise((*pytest_args, "")):
        if arg.partition("=")[0] == "--deselect":
            return True
        if arg[:2] in expressions:
            expressions[arg[:2]] = arg[2:] or following
    return any(expressions.values())


def stops_early(pytest_args: Sequence[str]) -> bool:
    """Return whether pytest's arguments end a file at its first failures."""
    return bool({arg.partition("=")[0] for arg in pytest_args} & STOPPING)
