"""`rlharness doctor`: check this machine for problems."""

from typing import Any

import click

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import say, show


@click.command()
@opt.option("--fix", "Print shell commands that fix the environment variables, for use with eval.")
@opt.option("--numerics", "Also check which torch operations are batch-invariant; takes seconds.")
@opt.option(
    "--distributed num_ranks N",
    "Start N ranks, and find the layer at which they hang.",
    opt.COUNT,
)
@opt.option("--backend", "Communication backend of the ranks.  [default: gloo]", click.Choice(["gloo", "nccl"]))
@opt.output
def doctor(invocation: Invocation, output: opt.Output, /, *, fix: bool, **given: Any) -> int:
    """Check this machine for problems, and print remedies.

    Exits with 1 if a problem would break tests or training runs.
    """
    import asyncio

    from harness.bits.findings import Severity
    from harness.doctor.checks import DoctorOptions, diagnose
    from harness.process.clock import SystemClock
    from harness.process.interruption import Interruption
    from harness.render.findings import findings_json, findings_text, fix_lines

    if output.is_json and fix:
        raise UsageError("--json and --fix", legal="one of them", remedy="rlharness doctor --json contains the exports")
    options = DoctorOptions(**given)

    async def examine() -> int:
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
        if output.is_json:
            opt.show_json(findings_json(findings, exit_code=code, took_s=took_s))
        elif fix:
            show("\n".join(fix_lines(findings)) or "# nothing to fix")
        else:
            again = fix_command(options.num_ranks, options.backend)
            show(findings_text(findings, took_s=took_s, colour=output.colour, fix_command=again))
        return code

    return asyncio.run(examine())


def fix_command(num_ranks: int | None, backend: str | None) -> str:
    """Return the command that prints the fixes."""
    words = [f"--{name} {value} " for name, value in (("distributed", num_ranks), ("backend", backend)) if value]
    return f"rlharness doctor {''.join(words)}--fix"
