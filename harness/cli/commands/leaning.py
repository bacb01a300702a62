"""`rlharness run --leaning FILE` from options to exit code."""

from harness.cli.commands.result import run_search, show_result
from harness.core.exit_codes import ExitCode
from harness.render.leaning import leaning_json, leaning_text, probe_line
from harness.runner.leaning import find_leaning
from harness.runner.options import RunOptions


def show_leaning(options: RunOptions, file: str, *, color: str) -> ExitCode:
    """Find what `file` leans on, and print it; raises HarnessError for a user error."""
    found = run_search(lambda on_probe: find_leaning(options, file, on_probe), probe_line)
    if found is None:
        return ExitCode.INTERRUPTED
    return show_result(found, options.invocation, leaning_text, leaning_json, color=color, is_json=options.json)
