"""The options of `run` and `plan`: the command line over the configuration over the defaults."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.bits.errors import UsageError
from harness.process.invocation import Invocation, num_cores, shadowing, wants_colour
from harness.runner.config import Config, load_config_for, load_needs_file
from harness.runner.options import (
    DEFAULT_COLLECT_TIMEOUT_S,
    DEFAULT_GRACE_S,
    DEFAULT_SLOW_S,
    DEFAULT_TIMEOUT_S,
    RunOptions,
)
from harness.runner.reruns.resuming import find_run
from harness.runner.schedule.sharding import parse_shard
from harness.runner.selections import split_selections

RUN_NOTHING = frozenset(
    ("--collect-only", "--co", "--collectonly", "--setup-plan", "--setupplan", "--cache-show")
) | frozenset(("--fixtures", "--funcargs", "--fixtures-per-test", "--markers", "-h", "--help", "-V", "--version"))
"""Options of pytest that print information and run no test."""
WANT_A_KEYBOARD = frozenset(("--pdb", "--trace"))
"""Options of pytest with which a failing test waits for input."""


def make_options(invocation: Invocation, given: Mapping[str, Any]) -> RunOptions:
    """The options of one command, from what was `given` on the command line (None where nothing was).

    Raises UsageError for a configuration that is not legal, and where the working directory hides this package.
    """
    hidden_by = shadowing(invocation.cwd)
    if hidden_by and not given["safe_path"]:
        raise UsageError(
            f"{hidden_by} would be imported instead of rlharness's own package",
            legal="a working directory without a top-level package `harness`, or --safe-path",
            remedy="add --safe-path (pytest then starts without the working directory on sys.path)",
        )
    invocation = replace(invocation, trailing=(*_selecting(given), *invocation.trailing))
    _check_pytest_args(invocation.trailing)
    config = _config(invocation, given)
    root = config.path.parent if config.path else invocation.cwd
    results_dir = given.get("results_dir") or (root / config.results_dir if config.results_dir else root)
    needs_file = given.get("needs_file")
    is_terminal = invocation.is_terminal and not given["json"] and not given.get("plain")
    return RunOptions(
        invocation=invocation,
        root=root,
        results_dir=results_dir.absolute(),
        paths=tuple(given["paths"]),
        gpus=given["gpus"],
        shard=None if given.get("shard") is None else parse_shard(given["shard"]),
        needs=config.needs + (load_needs_file(needs_file) if needs_file else ()),
        last_failed=bool(given.get("last_failed")),
        resume=find_run(results_dir, given["resume"]) if given.get("resume") else None,
        failed_first=bool(given.get("failed_first")),
        containment=given["containment"],
        events_file=given.get("events_file"),
        junit_file=given.get("junit_file"),
        html_file=given.get("html_file"),
        trace_events_file=given.get("trace_events_file"),
        num_slowest=given.get("durations") or 0,
        json=given["json"],
        keep_tmp=bool(given.get("keep_tmp")),
        live=is_terminal,
        colour=wants_colour(given["color"], invocation),
        safe_path=given["safe_path"],
        history_free=bool(config.history_free),
        gpus_per_worker=config.gpus_per_worker or 0,
        memory_gb_per_worker=config.memory_gb_per_worker or 0.0,
        workers_per_gpu=given.get("workers_per_gpu") or 0,
        together=tuple(map(tuple, config.together or ())),
        accepts_leaning=config.leaning == "report",
        check_leaning=_first_given(given.get("check_leaning"), config.check_leaning),
        **_layered(config, given),
    )


def _config(invocation: Invocation, given: Mapping[str, Any]) -> Config:
    """Return the configuration of the paths; a note names one found elsewhere."""
    files = [each.absolute for each in split_selections(given["paths"], invocation.cwd)]
    config = load_config_for(files, invocation.cwd)
    if config.path is not None and config.path.parent not in (invocation.cwd, *invocation.cwd.parents):
        invocation.note(f"configuration: {config.path}")
    _check_default_need(config)
    return config


def _check_default_need(config: Config) -> None:
    if config.gpus_per_worker is not None and config.memory_gb_per_worker is not None:
        raise UsageError(
            f"{config.path}: [tool.rlharness] has both gpus-per-worker and memory-gb-per-worker",
            legal="one of them: whole GPUs, or a budget on a shared GPU",
            remedy="remove one of the two",
        )


def _selecting(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options that select tests as pytest takes them; those after -- come later and win."""
    pairs = (("-k", given.get("keyword")), ("-m", given.get("marker")))
    expressions = tuple(word for name, value in pairs if value is not None for word in (name, value))
    return expressions + tuple(f"--deselect={nodeid}" for nodeid in given.get("deselect") or ())


def _check_pytest_args(pytest_args: Sequence[str]) -> None:
    """Raise UsageError for an option of pytest that would leave a file without an outcome."""
    for arg in pytest_args:
        name = arg.partition("=")[0]
        if name in RUN_NOTHING:
            raise UsageError(
                f"-- {arg}: pytest runs no tests with this option",
                legal="after --, pytest options that run tests",
                remedy="use rlharness plan to see the schedule, or run pytest directly",
            )
        if name in WANT_A_KEYBOARD:
            raise UsageError(
                f"-- {arg}: test files run in parallel and cannot read the keyboard",
                legal="after --, pytest options that need no input",
                remedy=f"run one file directly: pytest {arg} FILE",
            )


def _layered(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return each option from the command line, else from the configuration, else its default."""
    defaults = {
        "cpu_units": (given["cpu_units"], config.cpu_units, num_cores()),
        "isolate": (given.get("isolate"), config.isolate, "file"),
        "preload": (None if config.preload is None else tuple(config.preload), ()),
        "timeout_s": (given.get("timeout"), config.timeout_s, DEFAULT_TIMEOUT_S),
        "grace_s": (given.get("grace"), config.grace_s, DEFAULT_GRACE_S),
        "wait_s": (given.get("wait"), config.wait_s, 0.0),
        "slow_s": (given.get("slow"), config.slow_s, DEFAULT_SLOW_S),
        "collect_timeout_s": (given["collect_timeout"], config.collect_timeout_s, DEFAULT_COLLECT_TIMEOUT_S),
        "retries": (given.get("retries"), config.retries, 0),
        "maxfail": (given.get("maxfail"), config.maxfail, 0),
        "allow_missing_gpus": (given.get("allow_missing_gpus"), config.allow_missing_gpus, False),
        "mix_models": (given["mix_models"], config.mix_models, False),
        "split": (given.get("split"), config.split, True),
        "by_number": (_by_number(given.get("device_ids")), _by_number(config.device_ids), False),
    }
    return {name: next(v for v in values if v is not None) for name, values in defaults.items()}


def _first_given(*values: bool | None) -> bool | None:
    return next((value for value in values if value is not None), None)


def _by_number(device_ids: str | None) -> bool | None:
    return None if device_ids is None else device_ids == "number"
