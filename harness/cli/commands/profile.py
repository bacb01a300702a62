"""`rlharness profile` from arguments to exit code."""

from collections.abc import Mapping
from typing import Any

from harness.cli.commands.result import run_search, show_result
from harness.cli.commands.run_options import make_options
from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation
from harness.render.memory_profile import limit_line, profile_json, profile_text
from harness.runner.memory_profile import profile_memory

NOT_GIVEN = {"cpu_units": None, "collect_timeout": None, "mix_models": None, "containment": "auto"}


def show_profile(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Find the GPU memory that a test needs, and print it; raises HarnessError for a user error."""
    test = arguments["test"]
    options = make_options(invocation, {**NOT_GIVEN, **arguments, "paths": (test,)})
    found = run_search(lambda on_probe: profile_memory(options, test, on_probe), limit_line)
    if found is None:
        return ExitCode.INTERRUPTED
    return show_result(
        found, invocation, profile_text, profile_json, color=arguments["color"], is_json=arguments["json"]
    )
