"""Scenarios against the same ones of a revision, which is checked out when it is first wanted."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from harness.core.errors import UsageError
from harness.lab.experiments.worktrees import Checkout, Commit, Side, Worktrees, check_origin
from harness.lab.gate.change import MAX_NAMES, Change, Finding
from harness.lab.gate.plan import GateContext, GateOptions, base_context
from harness.lab.gate.result import GateScenario
from harness.lab.gate.sides import Recorder, compare_sides
from harness.trace.renames import current_identity


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
        self._options = options
        self._checkout = checkout
        self._worktrees = worktrees
        self._worktrees_end = worktrees_end
        self._note = note
        self._given = commit
        self._side: Side | None = None
        self.commit: Commit | None = None
        """What is checked out; None until something was compared with it, and where there is none."""
        self.notes: list[str] = []

    def side(self) -> Side | None:
        """The base, checked out; None without a given base and a default one."""
        if self._side is None:
            commit = self._given or self._checkout.default_base()
            if commit is None:
                return None
            if commit == self._checkout.commit("HEAD") and not self._checkout.is_dirty:
                self.notes.append(
                    "the base is the checked-out commit, without uncommitted changes: both sides are the same tree"
                )
            self._note(f"base {commit.short} {commit.subject}")
            self._side = self._worktrees_end.enter_context(self._worktrees.at(commit))
            self.commit = commit
        return self._side

    async def compare(self, recorder: Recorder, head: GateContext) -> GateScenario:
        """A scenario of the head, and the same at the base. Interrupted, BrokenRun."""
        side = self.side()
        if side is None or self.commit is None:
            shallow = ", and this is a shallow clone" if self._checkout.is_shallow else ""
            reason = f"there is no base: no commit before this one, no branch of origin{shallow}: --base REV names one"
            return GateScenario(head.name, Finding(Change.NOT_COMPARABLE, (reason,)))
        against = f"base {self.commit.short}"
        try:
            base = base_context(head, self._worktrees.working_tree, side, self._options)
        except UsageError as error:
            finding = Finding(Change.CONFIGURATION, (f"the base's scenario cannot be run: {error.what}",))
            return GateScenario(head.name, finding, against=against)
        if base is None:
            return GateScenario(head.name, Finding(Change.NEW, ("the base has no such scenario",)), against=against)
        check_origin(base.side, base.run_spec.call, self._checkout.root)
        if reasons := other_identity(base.run_spec.identity, head.run_spec.identity):
            return GateScenario(head.name, Finding(Change.CONFIGURATION, reasons), against=against)
        measured = await compare_sides(recorder, base, head, num_runs=self._options.runs, limits=self._options.limits)
        return GateScenario(head.name, measured.finding, measured.costs, against)


def other_identity(base: Mapping[str, str], head: Mapping[str, str]) -> tuple[str, ...]:
    """What of the configuration is not the same, value by value; nothing where it is."""
    base, head = current_identity(base), current_identity(head)
    names = sorted(name for name in base.keys() | head.keys() if base.get(name) != head.get(name))
    told = [f"{name} was {base.get(name, 'absent')} and is {head.get(name, 'absent')}" for name in names[:MAX_NAMES]]
    return tuple(told + ([f"and {len(names) - MAX_NAMES} more keys"] if len(names) > MAX_NAMES else []))
