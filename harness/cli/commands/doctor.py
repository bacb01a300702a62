"""`rlharness doctor` from arguments to exit code: the means of asking children, the checks, what is printed.

    probe the tiers ─▶ scratch root, supervisors ─▶ every check at once ─▶ findings ─▶ text, JSON or lines of a shell

A child that is asked something (torch, pip, a lock on a dead file server) runs as a test file does: under a supervisor
that ends its process tree for certain.
"""

import asyncio
import json
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from harness.core.clock import SystemClock
from harness.core.errors import HarnessError, UsageError
from harness.core.exit_codes import ExitCode
from harness.core.findings import Finding, Severity
from harness.core.invocation import Invocation, terminal_columns, wants_colour
from harness.core.regular_file import open_regular
from harness.doctor.bootstrap import Bootstrap, find_layer
from harness.doctor.checks import CHECKS, NUMERICS
from harness.doctor.examination import Check, examine, in_order
from harness.doctor.gpus import check_cards_for
from harness.doctor.host import Answer, Host
from harness.machine.network.among_hosts import WAIT_S, join_hosts, listen_for_hosts
from harness.process.child_env import child_env
from harness.process.interruption import Interruption
from harness.process.run_directory import new_run_id
from harness.process.scratch import hold, make_scratch_root, remove_tree
from harness.process.supervisors import AttemptSpec, Supervisors, Tiers, find_py_spy, probe_tiers
from harness.render.console import say, show
from harness.render.findings import findings_json, findings_text, fix_lines

GRACE_S = 0.5
UNKILLABLE_AFTER_S = 2.0
MAX_ANSWER_BYTES = 1_000_000
MIN_FILES = 128
MIN_FILE_BYTES = MAX_ANSWER_BYTES


def run_doctor(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness doctor`; HarnessError for what the user can mend."""
    _check_together(arguments)
    _check_limits()
    return asyncio.run(_carry_out(invocation, arguments))


def _check_limits() -> None:
    """UsageError where a check would be told apart from its own failure only by luck."""
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= num_files < MIN_FILES:
        raise UsageError(
            f"{num_files} files may be open at once (ulimit -n), and looking takes more",
            legal=f"{MIN_FILES} or more; Ray and data loaders want thousands",
            remedy="ulimit -n 65536; of a container: docker run --ulimit nofile=65536:65536",
        )
    size_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= size_bytes < MIN_FILE_BYTES:
        raise UsageError(
            f"a file may have {size_bytes} bytes at most (ulimit -f), and looking takes more",
            legal=f"{MIN_FILE_BYTES} or more; a checkpoint wants gigabytes",
            remedy="ulimit -f unlimited; of a container: docker run --ulimit fsize=-1:-1",
        )


def _check_together(arguments: Mapping[str, Any]) -> None:
    """UsageError for options that exclude each other, or mean nothing without another."""
    if arguments["json"] and arguments["fix"]:
        raise UsageError("--json and --fix", legal="one of them", remedy="rlharness doctor --json has the exports too")
    if arguments["listen"] is not None and arguments["peer"] is not None:
        raise UsageError("--listen and --peer", legal="--listen on one host, --peer on the others")
    if arguments["distributed"] is not None and _meets_others(arguments):
        raise UsageError(
            "--distributed beside --listen or --peer",
            legal="one of them",
            remedy="first the hosts, then each by itself",
        )
    if arguments["numerics"] and (arguments["distributed"] is not None or _meets_others(arguments)):
        raise UsageError(
            "--numerics beside --distributed, --listen or --peer",
            legal="one of them",
            remedy="rlharness doctor --numerics looks at this host alone",
        )
    for option, other in (("backend", "distributed"), ("hosts", "listen")):
        if arguments[option] is not None and arguments[other] is None:
            raise UsageError(f"--{option} without --{other}", legal=f"--{option} beside --{other}")


async def _carry_out(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    with Interruption() as interruption:
        findings = await interruption.unless_interrupted(_find(invocation, arguments))
    if findings is None:
        say(f"interrupted by {interruption.by}")
        return ExitCode.INTERRUPTED
    is_broken = any(finding.severity is Severity.BROKEN for finding in findings)
    code = ExitCode.TESTS_FAILED if is_broken else ExitCode.OK
    took_s = clock.monotonic_s() - began_s
    if arguments["json"]:
        show(json.dumps(findings_json(findings, exit_code=code, took_s=took_s)))
    elif arguments["fix"]:
        if lines := fix_lines(findings):
            show("\n".join(lines))
    else:
        colour = wants_colour(arguments["color"], invocation)
        columns = terminal_columns() if invocation.is_terminal else None
        again = fix_command(arguments)
        show(findings_text(findings, took_s=took_s, colour=colour, fix_command=again, columns=columns))
    return code


def fix_command(arguments: Mapping[str, Any]) -> str:
    """What prints the lines that mend what was found; empty where other hosts would have to be asked again."""
    if _meets_others(arguments):
        return ""
    options = [f"--{name} {arguments[name]} " for name in ("distributed", "backend") if arguments[name] is not None]
    return f"rlharness doctor {''.join(options)}--fix"


def _meets_others(arguments: Mapping[str, Any]) -> bool:
    """Whether other hosts are asked, which have to be asked again for each answer."""
    return arguments["listen"] is not None or arguments["peer"] is not None


async def _find(invocation: Invocation, arguments: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The findings of what was asked for: this host's, or those of several that meet."""
    wait_s = arguments["wait"] if arguments["wait"] is not None else WAIT_S
    if arguments["listen"] is not None:
        num_hosts = arguments["hosts"] or 2
        met = listen_for_hosts(invocation.environ, arguments["listen"], num_hosts=num_hosts, wait_s=wait_s, say=say)
        return in_order(await met)
    if arguments["peer"] is not None:
        return in_order(await join_hosts(invocation.environ, arguments["peer"], wait_s=wait_s))
    if arguments["distributed"] is not None:
        return await _walk_layers(invocation, arguments["distributed"], arguments["backend"] or "gloo")
    checks: Sequence[Check] = CHECKS
    if arguments["numerics"]:
        say("looking at torch's operations, which takes some seconds")
        checks = (*CHECKS, NUMERICS)
    with host_of(invocation) as host:
        return await examine(host, checks)


async def _walk_layers(invocation: Invocation, num_ranks: int, backend: str) -> tuple[Finding, ...]:
    """The layers of a bootstrap of `num_ranks` ranks, in their own order; InventoryError for NCCL on too few cards."""
    if backend == "nccl":
        await check_cards_for(num_ranks, invocation.environ)
    with _means(probe_tiers()) as (supervisors, scratch):
        bootstrap = Bootstrap(num_ranks, backend, invocation.environ, supervisors, scratch, invocation.cwd, say)
        return await find_layer(bootstrap)


@contextmanager
def host_of(invocation: Invocation) -> Iterator[Host]:
    """This machine as the checks are given it, with the means to ask children for as long as it is entered."""
    host = Host(invocation.environ, invocation.cwd, _Nobody(""))
    with ExitStack() as stack:
        try:
            tiers = probe_tiers()
            host = replace(host, tier=tiers.chosen, refused=tiers.refused)
            children = _Children(*stack.enter_context(_means(tiers)), invocation)
        except (HarnessError, OSError) as error:  # too few files or processes are allowed: the other findings say so
            why = error.what if isinstance(error, HarnessError) else str(error)
            yield replace(host, ask=_Nobody(why), refused=host.refused if host.tier else {"tried": why})
            return
        yield replace(host, ask=children)


@contextmanager
def _means(tiers: Tiers) -> Iterator[tuple[Supervisors, Path]]:
    """What child processes need here: the means to end them, and a place for their files."""
    # not in the user's TMPDIR: a directory made on a file system that hangs would hang this process for good
    scratch, _ = make_scratch_root({})
    held = hold(scratch)
    try:
        with closing(Supervisors(tiers.chosen, new_run_id(SystemClock().wall()), find_py_spy())) as supervisors:
            yield supervisors, Path(scratch)
    finally:
        os.close(held)
        if complaint := remove_tree(scratch):
            say(complaint)


class _Nobody:
    """Stands in where no child can be started; every answer says why."""

    def __init__(self, problem: str) -> None:
        self._problem = problem

    async def __call__(self, argv: Sequence[str], *, limit_s: float) -> Answer:
        return Answer("", None, f"no child process could be started: {self._problem}")


class _Children:
    """Asks child processes, each under a supervisor of its own."""

    def __init__(self, supervisors: Supervisors, scratch: Path, invocation: Invocation) -> None:
        self._supervisors = supervisors
        self._scratch = scratch
        self._invocation = invocation
        self._num_asked = 0

    async def __call__(self, argv: Sequence[str], *, limit_s: float) -> Answer:
        self._num_asked += 1
        directory = self._scratch / f"{self._num_asked}"
        tmpdir = self._scratch / f"{self._num_asked}t"
        directory.mkdir()
        tmpdir.mkdir()
        marker = f"{self._scratch.name}-{self._num_asked}"
        end = await self._supervisors.run(
            AttemptSpec(
                argv=tuple(argv),
                cwd=str(self._invocation.cwd),
                env=child_env(self._invocation.environ, gpus=None, tmpdir=str(tmpdir), marker=marker, master_port=0),
                directory=str(directory),
                marker=marker,
                timeout_s=limit_s,
                startup_timeout_s=inf,
                grace_s=GRACE_S,
                unkillable_after_s=UNKILLABLE_AFTER_S,
            )
        )
        with open_regular(directory / "output.log") as file:
            output = file.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
        problem = ""
        if end.reason == "timeout":
            problem = f"no answer within {limit_s:g} s"
        elif end.reason or end.exit_code is None:
            problem = end.reason.replace("_", " ") or f"it died of signal {end.signal}"
        if end.unkillable:
            stuck = ", ".join(" ".join(process.split()[:2]) for process in end.unkillable)
            problem += f"; it cannot be killed (pid and state: {stuck})"
        return Answer(output, end.exit_code if not end.reason else None, problem)
