"""`rlharness doctor` from arguments to exit code: options, findings, what is printed."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.doctor.diagnosis import DoctorOptions, check_limits, diagnose
from harness.machine.findings import Severity
from harness.process.clock import SystemClock
from harness.process.interruption import Interruption
from harness.process.invocation import Invocation, wants_colour
from harness.render.console import say, show
from harness.render.findings import findings_json, findings_text, fix_lines


def doctor_options(arguments: Mapping[str, Any]) -> DoctorOptions:
    """Return the typed options; UsageError for options that exclude each other, or need another."""
    if arguments["json"] and arguments["fix"]:
        raise UsageError("--json and --fix", legal="one of them", remedy="rlharness doctor --json contains the exports")
    return DoctorOptions(
        numerics=bool(arguments["numerics"]),
        num_ranks=arguments["distributed"],
        backend=arguments["backend"],
    )


def run_doctor(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness doctor`; raises HarnessError for a user error."""
    options = doctor_options(arguments)
    check_limits()
    return asyncio.run(_carry_out(options, invocation, arguments))


async def _carry_out(options: DoctorOptions, invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    clock = SystemClock()
    began_s = clock.monotonic_s()
    with Interruption() as interruption:
        findings = await interruption.unless_interrupted(diagnose(options, invocation))
    if findings is None:
        say(f"interrupted by {interruption.by}")
        return ExitCode.INTERRUPTED
    is_broken = any(finding.severity is Severity.BROKEN for finding in findings)
    code = ExitCode.TESTS_FAILED if is_broken else ExitCode.OK
    took_s = clock.monotonic_s() - began_s
    if not findings:
        return code  # a rank of a job, whose rank 0 prints the report
    if arguments["json"]:
        show(json.dumps(findings_json(findings, exit_code=code, took_s=took_s)))
    elif arguments["fix"]:
        show("\n".join(fix_lines(findings)) or "# nothing to fix")
    else:
        colour = wants_colour(arguments["color"], invocation)
        again = fix_command(options)
        show(findings_text(findings, took_s=took_s, colour=colour, fix_command=again))
    return code


def fix_command(options: DoctorOptions) -> str:
    """Return the command that prints the fixes; empty if it would need the other ranks of a job again."""
    if options.num_ranks == 0:
        return ""
    given = (("distributed", options.num_ranks), ("backend", options.backend))
    words = [f"--{name} {value} " for name, value in given if value is not None]
    return f"rlharness doctor {''.join(words)}--fix"
