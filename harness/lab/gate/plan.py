"""What `rlharness gate` was asked for: options over the configuration over the defaults, scenarios on both sides."""

from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from harness.lab.experiments.command_spec import command_name, make_command_spec
from harness.lab.experiments.launcher import checked_program
from harness.lab.experiments.run_spec import RunSpec
from harness.lab.experiments.scenario import SMOKE
from harness.lab.experiments.scenario_files import ScenarioFile, all_scenarios, find_scenario
from harness.lab.experiments.scenario_options import ScenarioOptions
from harness.lab.experiments.scenario_spec import asked_of, check_machine, make_scenario_spec, say_misspelt
from harness.lab.experiments.worktrees import CHILD, Side
from harness.lab.gate.costs import Limits
from harness.lab.gate.policy import Policy, checked_reasons
from harness.process.invocation import Invocation
from harness.runner.config import GateKeys, load_config


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What the command line and the configuration say together."""

    invocation: Invocation
    names: tuple[str, ...]
    """Scenarios that were typed; none: those of the configuration, else all of the project."""
    base: str
    """A revision; empty where none was given."""
    golden: Path | None
    accepts: bool
    reason: str
    """Why goldens are rewritten."""
    given: ScenarioOptions
    """What makes a run spec of a scenario or of the command."""
    setup: str
    """Command that prepares the base's worktree; empty for none."""
    runs: int
    """Of each side."""
    policy: Policy
    limits: Limits
    timeout_s: float = inf

    typed: frozenset[str] = frozenset()
    """Of fail_on, slowdown and memory those that the command line has."""
    base_scenarios: tuple[str, ...] = ()
    """Scenarios that the configuration of the base lists: they run whatever that of the head says."""

    def with_policy_of(self, keys: GateKeys) -> "GateOptions":
        """The same options with the policy, limits and scenarios of the base.

        What the command line says stays. UsageError for a policy that is not legal.
        """
        default = Limits()
        policy = Policy() if keys.fail_on is None else Policy(checked_reasons(keys.fail_on, "fail-on of the base"))
        limits = Limits(
            slowdown=self.limits.slowdown if "slowdown" in self.typed else keys.slowdown or default.slowdown,
            memory=self.limits.memory if "memory" in self.typed else keys.memory or default.memory,
        )
        return replace(
            self,
            policy=self.policy if "fail_on" in self.typed else policy,
            limits=limits,
            base_scenarios=tuple(keys.scenarios or ()),
        )


@dataclass(frozen=True, slots=True)
class GateContext:
    """A scenario on one side, ready to be run."""

    name: str
    size: str
    side: Side = field(repr=False)
    run_spec: RunSpec = field(repr=False)


def scenario_names(side: Side, options: GateOptions) -> tuple[str, ...]:
    """The scenarios that this side wants to be run: those typed, those of its configuration, or all of its project.

    None beside a command.
    """
    if options.names or options.invocation.trailing:
        return options.names
    config = load_config(side.cwd)
    if config.gate.scenarios is not None and config.path is not None and side.holds(str(config.path)):
        known = {each.name for each in all_scenarios(side.cwd)}
        return tuple(dict.fromkeys((*config.gate.scenarios, *(known & set(options.base_scenarios)))))
    return tuple(each.name for each in all_scenarios(side.cwd) if side.holds(str(each.file)))


def command_context(side: Side, options: GateOptions) -> GateContext:
    """The command after -- on one side."""
    argv = options.invocation.trailing
    run_spec = make_command_spec(argv, options.given.recording)
    checked_program(run_spec, side.cwd, side.command_environ)
    return GateContext(command_name(argv), "", side, run_spec)


def head_context(name: str, head: Side, options: GateOptions) -> GateContext:
    """A scenario of the working tree; UsageError where it cannot be run here as it was asked for."""
    asked = asked_of(name, find_scenario(name, head.cwd).read(), options.given, SMOKE)
    say_misspelt(asked, options.invocation.note)
    check_machine(options.invocation, asked.scenario)
    return _scene(name, asked.size, head, make_scenario_spec(asked, options.given.recording))


def base_context(scene: GateContext, head: Side, base: Side, options: GateOptions) -> GateContext | None:
    """The same scenario at the base, from its own file; None where it has none.

    A scenario that is no file of the checkout, of an installed package, say, is the same on both sides. UsageError
    where it cannot be run there as it was asked for.
    """
    if options.invocation.trailing:
        return replace(scene, side=base)
    found = find_scenario(scene.name, head.cwd)
    if head.holds(str(found.file)):
        path = base.root / Path(str(found.file)).resolve().relative_to(head.root.resolve())
        if not path.is_file():
            return None
        if found.table is None:
            found = ScenarioFile(scene.name, path)
        elif scene.name in {each.name for each in all_scenarios(base.cwd)}:
            found = find_scenario(scene.name, base.cwd)
        else:
            return None
    asked = asked_of(scene.name, found.read(), options.given, SMOKE)
    return _scene(scene.name, asked.size, base, make_scenario_spec(asked, options.given.recording))


def _scene(name: str, size: str, side: Side, run_spec: RunSpec) -> GateContext:
    return GateContext(name, size, side, run_spec if run_spec.call is None else replace(run_spec, argv=CHILD))
