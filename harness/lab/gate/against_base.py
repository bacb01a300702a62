"""Scenarios against the same ones of a revision, which is checked out when it is first wanted."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack

from harness.bits.errors import UsageError
from harness.lab.experiments.worktrees import Checkout, Commit, Side, Worktrees, check_origin
from harness.lab.gate.change import Change, Finding, change_of_identity
from harness.lab.gate.plan import GateContext, GateOptions, base_context
from harness.lab.gate.reasons import MoreSettings, NoBase, Reason, ReasonCode, Reported, SettingChanged
from harness.lab.gate.result import GateScenario
from harness.lab.gate.sides import Recorder, compare_sides
from harness.trace.renames import current_identity

MAX_SETTINGS = 5
"""Maximum number of changed settings with a reason of their own."""


class AgainstBase:
    """The base of one gate. `worktrees_end` takes its worktree away."""

    def __init__(
        self,
        options: GateOptions,
        checkout: Checkout,
        worktrees: Worktrees,
        worktrees_end: ExitStack,
        commit: Commit | None,
        *,
        note: Callable[[str], None],
    ) -> None:
        self.options = options
        """What is compared, and by which policy and limits."""
        self._checkout = checkout
        self._worktrees = worktrees
        self._worktrees_end = worktrees_end
        self._note = note
        self._given = commit
        self._side: Side | None = None
        self.commit: Commit | None = None
        """What is checked out; None until something was compared with it, and where there is none."""
        self.notes: list[Reason] = []
        self.set_up: Callable[[Side], Awaitable[str]] | None = None
        """Prepares the worktree before its first run, and returns why it could not."""
        self._problem: str | None = None
        """Why the worktree is not prepared: empty where it is, None before."""

    def side(self) -> Side | None:
        """The base, checked out; None without a given base and a default one."""
        if self._side is None:
            commit = self._given or self._checkout.default_base()
            if commit is None:
                return None
            if commit == self._checkout.commit("HEAD") and not self._checkout.is_dirty:
                self.notes.append(Reason(ReasonCode.SAME_TREE))
            self._note(f"base {commit.short} {commit.subject}")
            self._side = self._worktrees_end.enter_context(self._worktrees.at(commit))
            self.commit = commit
        return self._side

    async def compare(self, recorder: Recorder, head: GateContext) -> GateScenario:
        """A scenario of the head, and the same at the base. Interrupted, BrokenRun."""
        side = self.side()
        if side is None or self.commit is None:
            reason = NoBase(ReasonCode.NO_BASE, self._checkout.is_shallow)
            return GateScenario(head.name, Finding(Change.NOT_COMPARABLE, (reason,)))
        against = f"base {self.commit.short}"
        if self._problem is None:
            self._problem = await self.set_up(side) if self.options.setup and self.set_up else ""
        if self._problem:
            finding = Finding(Change.NOT_COMPARABLE, (Reported(ReasonCode.BASE_REJECTED, self._problem),))
            return GateScenario(head.name, finding, against=against)
        try:
            base = base_context(head, self._worktrees.working_tree, side, self.options)
        except UsageError as error:
            finding = Finding(Change.NOT_COMPARABLE, (Reported(ReasonCode.BASE_REJECTED, error.what),))
            return GateScenario(head.name, finding, against=against)
        if base is None:
            return GateScenario(head.name, Finding(Change.NEW, (Reason(ReasonCode.SCENARIO_NEW),)), against=against)
        check_origin(base.side, base.run_spec.call, self._checkout.root)
        if reasons := other_identity(base.run_spec.identity, head.run_spec.identity):
            change = change_of_identity(base.run_spec.identity, head.run_spec.identity)
            return GateScenario(head.name, Finding(change, reasons), against=against)
        measured = await compare_sides(recorder, base, head, num_runs=self.options.runs, limits=self.options.limits)
        return GateScenario(head.name, measured.finding, measured.costs, against)


def other_identity(base: Mapping[str, str], head: Mapping[str, str]) -> tuple[Reason, ...]:
    """Return the settings that differ, as reasons; empty if none does."""
    base, head = current_identity(base), current_identity(head)
    names = sorted(name for name in base.keys() | head.keys() if base.get(name) != head.get(name))
    reasons: list[Reason] = [
        SettingChanged(ReasonCode.SETTING_CHANGED, name, base.get(name), head.get(name))
        for name in names[:MAX_SETTINGS]
    ]
    if len(names) > MAX_SETTINGS:
        reasons.append(MoreSettings(ReasonCode.MORE_SETTINGS_CHANGED, len(names) - MAX_SETTINGS))
    return tuple(reasons)
