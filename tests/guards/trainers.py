"""Recording changes no bit of other people's trainers: final weights of fifty programs, recorded and unrecorded.

The programs, what is planted in each and where it is named are those of tests/conformance/programs, which checks them:
the number of steps, an honest pair that is equal, and the planted cause count here too. Whole, their environments (but
the one of smaller packages) are made where a package registry can be reached. The quick part is the weights alone, of
six programs that need torch only.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.programs.__main__ import environments
from tests.conformance.programs.checks import check
from tests.conformance.programs.table import PROGRAMS, Environment, Program
from tests.guards import base
from tests.guards.guard import Context, Row, in_parallel

QUICK = ("accumulated", "closure-lbfgs", "checkpoint-hooks", "dqn", "loader-workers", "ddp")


def rows(context: Context) -> Iterator[Row]:
    """Check each program; one whose environment could not be made is not installed."""
    smaller = [each for each in PROGRAMS if each.environment is not Environment.MORE]
    programs = [each for each in smaller if not context.is_quick or each.name in QUICK]
    packaged = {each.environment for each in programs if each.package}
    made = environments(packaged, base.cache().parent / "programs")

    def row(program: Program) -> Row:
        python = made.get(program.environment) if program.package else Path(sys.executable)
        if python is None:
            return Row(program.name, missing=f"the environment {program.environment}")
        seen = check(program, python.parent, context.work / program.name, is_quick=context.is_quick)
        return Row(program.name, "; ".join(seen.problems))

    return in_parallel(row, programs)
