"""The options of `gate`: the command line over [tool.rlharness.gate] over the defaults."""

from collections.abc import Mapping
from math import inf
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.redaction import redact_text
from harness.cli.commands.scenario_arguments import recording_options
from harness.lab.experiments.command_spec import ScenarioOptions
from harness.lab.experiments.preparation import place_of
from harness.lab.gate.gate import LEAST_AGREEING, GateOptions, policy_of
from harness.process.invocation import Invocation
from harness.runner.config import load_config

DEFAULT_RUNS = 2


def gate_options(invocation: Invocation, arguments: Mapping[str, Any]) -> GateOptions:
    """The options of a command line; UsageError for what does not go together or is not legal."""
    config = load_config(invocation.cwd)
    keys = config.gate
    root = config.path.parent if config.path else invocation.cwd
    golden = place_of(invocation.cwd, arguments["golden"]) if arguments["golden"] else None
    if golden is None and keys.golden:
        golden = root / keys.golden
    if arguments["accept"] and not golden:
        raise UsageError(
            "--accept without goldens", legal="--golden DIR --accept", remedy="name the directory of the goldens"
        )
    if arguments["accept"] and not (arguments["reason"] or "").strip():
        raise UsageError(
            "--accept without a reason",
            legal="--accept --reason TEXT",
            remedy="state why the bits may change; the gate stores the reason with the goldens",
        )
    if arguments["reason"] and not arguments["accept"]:
        raise UsageError("--reason without --accept", legal="--accept --reason TEXT")
    runs = arguments["runs"] or keys.runs or DEFAULT_RUNS
    if golden is not None and runs < LEAST_AGREEING:
        invocation.note(
            f"note: {LEAST_AGREEING} runs of the working tree are made, not {runs}: goldens need two runs that agree"
        )
    typed = {name: arguments[name] for name in ("fail_on", "slowdown", "memory")}
    fail_on, limits = policy_of(typed, keys, f"{config.path}: [tool.rlharness.gate] fail-on")
    return GateOptions(
        invocation=invocation,
        names=tuple(arguments["scenarios"]),
        base=arguments["base"] or "",
        golden=golden,
        accepts=arguments["accept"],
        reason=redact_text((arguments["reason"] or "").strip()),  # it is committed with the goldens
        given=ScenarioOptions(
            arguments["size"] or (None if invocation.trailing else keys.size),
            tuple(arguments["overrides"]),
            recording=recording_options(arguments),
        ),
        setup=arguments["setup"] or "",
        runs=runs,
        fail_on=fail_on,
        limits=limits,
        typed=typed,
        timeout_s=arguments["timeout"] or keys.timeout_s or inf,
    )
