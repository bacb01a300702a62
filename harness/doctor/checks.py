"""`rlharness doctor`: every check of this machine, at once, each with its own limit.

    those that are timed, then the others, at once each time:

    gather ─┬─ check, limit ──▶ findings
            ├─ check, limit ──▶ (too long) ──▶ a finding that says so
            └─ check, limit ──▶ (raises)   ──▶ a finding that says so

A check is a function of the host that returns findings. It runs in a daemon thread, since a file system or a driver may
hang.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf

from harness.bits.errors import HarnessError, UsageError
from harness.bits.findings import Severity
from harness.doctor import distributed, environment, gpus, numerics, packages, resources
from harness.doctor.host import Host, open_probes
from harness.machine.findings import WARNING, MachineCode, MachineFinding
from harness.machine.network.preflight import preflight
from harness.process.children import Answer
from harness.process.clock import SystemClock
from harness.process.daemon_thread import in_daemon_thread
from harness.process.invocation import Invocation
from harness.process.scratch import require_proc


class CheckCode(MachineCode):
    """Codes of checks that have no result."""

    # fmt: off
    NO_RESULT = "no_result", WARNING, "{name}", """
        {problem}
        breaks: every program that depends on it may hang or fail the same way
        remedy: rlharness doctor again; if the problem stays, inspect that part of the machine by hand"""
    # fmt: on


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at."""

    name: str
    function: Callable[[Host], Iterable[MachineFinding]]
    limit_s: float
    is_timed: bool = False
    """Whether it measures durations, and so does not run beside checks that keep the processors busy."""


def check_network(host: Host) -> Sequence[MachineFinding]:
    """The preflight of a run: whether NCCL, Gloo and Ray would hang on this host."""
    return asyncio.run(preflight(host.environ, SystemClock())).findings


CHECKS = (
    Check("GPUs", gpus.check_gpus, gpus.READ_S + 2 * gpus.IMPORT_S + 5),
    Check("network", check_network, 10, is_timed=True),
    Check("TMPDIR", resources.check_tmpdir, 2 * resources.TRIAL_S + 5, is_timed=True),
    Check("/dev/shm", resources.check_shared_memory, 5),
    Check("ulimits", resources.check_ulimits, 5),
    Check("containment", resources.check_containment, 35),
    Check("control group", resources.check_control_group, 5),
    Check("Ray", environment.check_ray, 10),
    Check("ranks", environment.check_ranks, 5),
    Check("bits", environment.check_bits, 5),
    Check("packages", packages.check_packages, 25),
)
NUMERICS = Check("numerics", numerics.check_numerics, numerics.SURVEY_S + 5)
"""Only where it is asked for: it keeps two cores busy for seconds, and a run that needs it looks by itself."""


async def examine(host: Host, checks: Sequence[Check]) -> tuple[MachineFinding, ...]:
    """Return the findings of all `checks`, the worst first, then in the order of the checks."""

    async def carry_out(check: Check) -> Sequence[MachineFinding]:
        try:
            return await in_daemon_thread(lambda: tuple(check.function(host)), limit_s=check.limit_s)
        except TimeoutError:
            problem = f"no answer within {check.limit_s:g} s"
        except Exception as error:  # a machine that is out of order raises anything: the others continue
            problem = f"the check failed: {type(error).__name__}: {error}"
        return (CheckCode.NO_RESULT(name=check.name, problem=problem),)

    found: dict[Check, Sequence[MachineFinding]] = {}
    for is_timed in (True, False):
        some = [check for check in checks if check.is_timed is is_timed]
        found |= zip(some, await asyncio.gather(*map(carry_out, some)), strict=True)
    severities = list(Severity)
    return tuple(
        sorted((each for check in checks for each in found[check]), key=lambda each: severities.index(each.severity))
    )


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Choice of checks."""

    numerics: bool = False
    """Whether torch's operations are probed too."""
    num_ranks: int | None = None
    """Ranks of the bootstrap that is tried (--distributed); None for none."""
    backend: str | None = None
    """Backend of these ranks; None for gloo."""

    def __post_init__(self) -> None:
        if self.numerics and self.num_ranks is not None:
            raise UsageError(
                "--numerics beside --distributed", legal="one of them", remedy="rlharness doctor --numerics by itself"
            )
        if self.backend is not None and self.num_ranks is None:
            raise UsageError("--backend without --distributed", legal="--backend beside --distributed")


async def diagnose(options: DoctorOptions, invocation: Invocation) -> tuple[MachineFinding, ...]:
    """Return the findings of this host, or those of a bootstrap; HarnessError for what the user can change."""
    require_proc()
    with ExitStack() as stack:
        if options.num_ranks is not None:
            probes = stack.enter_context(open_probes(invocation))
            backend = options.backend or "gloo"
            bootstrap = distributed.Bootstrap(options.num_ranks, backend, invocation.environ, probes, invocation.note)
            return await in_daemon_thread(lambda: distributed.find_layer(bootstrap), limit_s=inf)
        try:
            ask = stack.enter_context(open_probes(invocation)).ask
        except (HarnessError, OSError) as error:  # other findings say why
            lost = Answer("lost", f"no child process could be started: {error}")
            ask = lambda limit_s, *steps: [lost]  # noqa: E731
        if options.numerics:
            invocation.note("checking torch's operations, which takes some seconds")
        return await examine(Host(invocation.environ, ask), (*CHECKS, NUMERICS) if options.numerics else CHECKS)
