"""`rlharness run`: run a suite of tests. The options of the suite are those of `rlharness plan` too."""

from dataclasses import fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click

from harness.bits.errors import HarnessError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli import options as opt
from harness.process.invocation import Invocation, num_cores, shadowing, wants_colour
from harness.render.console import is_outermost_on_github, say
from harness.runner.options import RunOptions

COUNT, FILE = opt.INDEX, opt.SomePath(path_type=Path)

suite_options = opt.all_of(
    click.argument("paths", nargs=-1, type=opt.PATH),
    opt.option(
        "--gpus auto|none|N|0,2,GPU-uuid|as-is:0|sim:N",
        "GPUs to use: all free ones, none, a count, a list, a list of GPUs that may be in use, or N simulated"
        " ones, to schedule with; sim:4xA,4xB simulates two models.  [default: auto]",
        default="auto",
    ),
    opt.option(
        "-n --cpu-units cpu_units", "Files without GPUs that run at once.  [default: number of cores]", opt.COUNT
    ),
    opt.option("-k keyword EXPR", "Run only tests whose names match, as -k of pytest does."),
    opt.option("-m marker EXPR", "Run only tests whose markers match, as -m of pytest does."),
    opt.option("--deselect NODE-ID", "Leave out the tests whose node id begins so. Repeatable.", multiple=True),
    opt.option("--shard K/N", "Run only shard K of N, balanced by expected durations."),
    opt.option("--last-failed --lf", "As --lf of pytest: run only what failed when it last ran, else everything."),
    opt.option("--resume RUN", "Keep what passed in this run, unless its file changed: an id, latest, or a directory."),
    opt.option("--failed-first --ff", "As --ff of pytest: start what failed when it last ran first."),
    opt.option("--needs needs_file", 'TOML file of globs of test files and needs: "tests/gpu/**" = 1.', FILE),
    opt.option("--mix-models/--no-mix-models", "Allow a file to get GPUs of different models."),
    opt.option("--workers-per-gpu N", "Files without a need that share each GPU and its memory.", opt.COUNT),
    opt.option("--split/--no-split", "Run a file in parts if it would end long after the others.  [default: --split]"),
    opt.option("--collect-timeout collect_timeout_s S", "Limit for importing a file.  [default: 120]", opt.ABOVE_0_S),
    opt.option("--safe-path", "Keep the working directory off pytest's import path."),
    opt.json_flag,
)


@click.command(
    cls=opt.Sectioned,
    sections={
        "Used most": "--gpus -n -k -m -x --last-failed --isolate --timeout --retries --junit",
        "Which tests": "--deselect --failed-first --resume --shard",
        "GPUs": "--needs --wait --allow-missing-gpus --mix-models --workers-per-gpu --device-ids --ray",
        "Limits": "--collect-timeout --grace --slow --maxfail --check-leaning",
        "Processes": "--split --containment --safe-path",
        "Results": "--json --events --results-dir --keep-tmp -v -q -s --plain --color --no-redact",
    },
    epilog="Everything after -- is passed to every pytest process:  rlharness run tests -- -q --tb=short\n\nResults are"
    " kept in .rlharness/runs: beside the pyproject.toml that has [tool.rlharness], or in the current directory.",
)
@suite_options
@opt.color
@opt.option(
    "--isolate",
    "What has a process of its own: file and test are forks of one session, interpreter is started.  [default: file]",
    click.Choice(["file", "test", "interpreter"]),
)
@opt.option(
    "--containment",
    "How process trees are held, strongest first.  [default: the strongest that this machine allows]",
    click.Choice(["auto", "cgroup", "pidns", "subreaper"]),
    default="auto",
)
@opt.option("--timeout timeout_s S", "Time limit of a file; a marker limits a test.  [default: 1800]", opt.ABOVE_0_S)
@opt.option("--grace grace_s S", "Seconds from SIGINT to SIGKILL at a file's end.  [default: 10]", click.FloatRange(0))
@opt.option("--wait wait_s S", "Wait up to S seconds for GPUs that others use.  [default: 0]", click.FloatRange(0))
@opt.option("--ray HOST:PORT", "Run on the nodes of a running Ray cluster, a task for each file; auto: this machine's.")
@opt.option("--slow slow_s S", "Report a file as slow after S seconds.  [default: 60]", click.FloatRange(0))
@opt.option("--maxfail N", "Start no more files after N have failed; 0 means no limit.", COUNT)
@opt.option("--retries N", "Run failed tests up to N times again.  [default: 0]", click.IntRange(0, 100))
@opt.option(
    "--check-leaning/--no-check-leaning", "Run a failing file again after the files before it: it leans if it passes."
)
@click.option("-x", "maxfail", flag_value=1, type=int, help="Same as --maxfail 1.")
@opt.option("--allow-missing-gpus/--no-allow-missing-gpus", "Exit with 0 even if files were not run for lack of GPUs.")
@opt.option("--events events_file", "Write every event to this file, one JSON object per line.", FILE)
@opt.option("--junit junit_file", "Write a JUnit XML report to this file.", FILE)
@opt.option(
    "--results-dir",
    "Make .rlharness, with results and outputs, in this directory.  [default: that of the configuration]",
    opt.SomePath(path_type=Path, file_okay=False),
)
@opt.option(
    "--device-ids", "GPU names for tests; vLLM needs numbers.  [default: uuid]", click.Choice(["uuid", "number"])
)
@opt.option("-v", "As -v of pytest, in the output of each file and in session.log.")
@opt.option("-q", "As -q of pytest, there.")
@opt.option("-s", "As -s of pytest: what tests print is in the output of their file, whether they pass or not.")
@opt.option("--keep-tmp", "Keep the temporary directories of failed files.")
@opt.option("--plain", "Print lines instead of the live display.")
@click.pass_obj
def run(invocation: Invocation, /, **given: Any) -> int:
    """Run test files in parallel, packed onto the GPUs they need.

    Each file runs in its own process tree, which is always terminated. Exits with 0 if all tests pass.
    """
    import asyncio
    import sys

    from harness.process.clock import Clock
    from harness.runner.reporter import Guarded
    from harness.runner.run import run_tests

    options = make_options(invocation, given)

    def reporters(directory: Path, clock: Clock) -> list[Guarded]:
        from harness.render.run_reporters import make_reporters  # late: while the session starts

        # The display goes to stdout, or to stderr where stdout is asked to be JSON.
        stream, on_github = sys.stderr if options.json else sys.stdout, is_outermost_on_github(invocation.environ)
        return make_reporters(options, directory, clock, stream, say, on_github=on_github)

    ended = asyncio.run(run_tests(options, reporters))
    if isinstance(ended, str):
        say(f"interrupted by {ended} before any test ran")
        return ExitCode.INTERRUPTED
    if options.json:
        from harness.render.run_json import summary_json

        opt.show_json(summary_json(ended.state, ended.finished))
    if ended.failure is not None:
        if isinstance(ended.failure, HarnessError):
            ended.failure.in_record = True
        raise ended.failure
    return ended.finished.exit_code


def make_options(invocation: Invocation, given: dict[str, Any]) -> RunOptions:
    """Return the command line over the configuration over the defaults.

    Raises UsageError for a configuration that is not legal, an option of pytest that would leave a file without an
    outcome, and where the working directory hides this package.
    """
    from harness.runner.config import load_config_for, load_needs_file
    from harness.runner.reruns.resume import find_run
    from harness.runner.schedule.packing import parse_shard
    from harness.runner.selections import split_selections
    from harness.runner.sessions.pytest_command import PLUGIN

    hidden_by = shadowing(invocation.cwd)
    if hidden_by and not given["safe_path"] and not entry_points(group="pytest11", name=PLUGIN):
        what = f"{hidden_by} would be imported instead of rlharness's own package"
        raise UsageError(what, remedy="add --safe-path (pytest then starts without the working directory on sys.path)")
    selecting = [
        word for name in ("keyword", "marker") if (value := given[name]) is not None for word in (f"-{name[0]}", value)
    ]
    selecting += [f"--deselect={nodeid}" for nodeid in given["deselect"]]
    selecting += [f"-{name}" for name in "vqs" if given.get(name)]
    selecting += [option for name, option in (("last_failed", "--lf"), ("failed_first", "--ff")) if given[name]]
    invocation = replace(invocation, trailing=(*selecting, *invocation.trailing))  # those after -- come later and win
    files = [each.absolute for each in split_selections(given["paths"], invocation.cwd)]
    config = load_config_for(files, invocation.cwd)
    if config.path is not None and config.path.parent not in (invocation.cwd, *invocation.cwd.parents):
        invocation.note(f"configuration: {config.path}")
    root = config.path.parent if config.path else invocation.cwd
    layers = ({"cpu_units": num_cores()}, vars(config), given)
    settings: dict[str, Any] = {name: value for layer in layers for name, value in layer.items() if value is not None}
    results_dir = (given.get("results_dir") or root / (config.results_dir or "")).absolute()
    special: dict[str, Any] = {
        "invocation": invocation,
        "root": root,
        "results_dir": results_dir,
        "shard": parse_shard(given["shard"]) if given["shard"] is not None else None,
        "needs": config.needs + (load_needs_file(given["needs_file"]) if given["needs_file"] else ()),
        "resume": find_run(results_dir, given["resume"]) if given["resume"] else None,
        "json": given["is_json"],
        "live": invocation.is_terminal and not given["is_json"] and not given.get("plain"),
        "colour": wants_colour(given.get("color", "auto"), invocation),
        "accepts_leaning": config.leaning == "report",
        "by_number": settings.get("device_ids") == "number",
    }
    names = {field.name for field in fields(RunOptions)}
    return RunOptions(**{name: value for name, value in settings.items() if name in names} | special)
