"""Options of scenarios and recordings, from the arguments of the commands that take them."""

from collections.abc import Mapping
from typing import Any

from harness.lab.experiments.command_spec import RecordingOptions, ScenarioOptions


def recording_options(arguments: Mapping[str, Any]) -> RecordingOptions:
    """Return how a command line wants its runs to be recorded."""
    return RecordingOptions(
        level=arguments["level"] or "",
        metrics=tuple(arguments["metric"]),
        keep=tuple(arguments.get("keep", ())),
        op_step=arguments.get("op_step"),
        sentinel=arguments.get("sentinel") or 0,
    )


def scenario_options(arguments: Mapping[str, Any]) -> ScenarioOptions:
    """Return what a command line changes of its scenario, and how it wants the runs to be recorded."""
    return ScenarioOptions(
        size=arguments["size"],
        overrides=tuple(arguments["overrides"]),
        sweep=tuple(arguments.get("sweep", ())),
        recording=recording_options(arguments),
    )
