"""The options of `gate`: the command line over [tool.rlharness.gate] over the defaults."""

from collections.abc import Mapping
from math import inf
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.redaction import redact_text
from harness.cli.commands.scenario_arguments import recording_options
from harness.lab.experiments.command_spec import ScenarioOptions
from harness.lab.experiments.preparation import place_of
from harness.lab.gate.costs import Limits
from harness.lab.gate.gate import LEAST_AGREEING, GateOptions
from harness.lab.gate.result import Policy, checked_reasons
from harness.process.invocation import Invocation
from harness.runner.config import GateKeys, load_config

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
        policy=_policy(arguments["fail_on"], keys, f"{config.path}: [tool.rlharness.gate] fail-on"),
        limits=_limits(arguments, keys),
        timeout_s=arguments["timeout"] or keys.timeout_s or inf,
        typed=frozenset(name for name in ("fail_on", "slowdown", "memory") if arguments[name] is not None),
    )


def _policy(typed: str | None, keys: GateKeys, where: str) -> Policy:
    if typed is not None:
        return Policy(checked_reasons([word.strip() for word in typed.split(",")], "--fail-on"))
    return Policy() if keys.fail_on is None else Policy(checked_reasons(keys.fail_on, where))


def _limits(arguments: Mapping[str, Any], keys: GateKeys) -> Limits:
    default = Limits()
    return Limits(
        slowdown=arguments["slowdown"] or keys.slowdown or default.slowdown,
        memory=arguments["memory"] or keys.memory or default.memory,
    )
