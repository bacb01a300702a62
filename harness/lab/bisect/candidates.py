"""Between what a bisection looks: commits, each in a worktree of its own, or versions of a package."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from harness.bits.errors import HarnessError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import path_text
from harness.lab.experiments.run import OUTPUT
from harness.lab.experiments.worktrees import Checkout, Commit, GitError, Side, Worktrees


class UnavailableError(HarnessError):
    """A candidate that is not available here; another one is probed instead."""


class Interrupted(HarnessError):
    """A signal has asked for the end before both ends were known."""

    exit_code = ExitCode.INTERRUPTED


def refuse_interrupted(interrupted_by: str) -> None:
    """Interrupted where a signal of this name has asked for the end; nothing for no name."""
    if interrupted_by:
        raise Interrupted(f"interrupted by {interrupted_by}, before both ends were known")


class Candidates(Protocol):
    """What may be bad first, and how each is had."""

    good: str
    bad: str

    @property
    def parents(self) -> Mapping[str, Sequence[str]]:
        """The history: by candidate, those right before it; `good` is not a candidate."""

    def describe(self, name: str) -> str:
        """A candidate as a person knows it."""

    def at(self, name: str) -> AbstractAsyncContextManager[Side]:
        """Where the candidate is run, gone afterwards; UnavailableError where it cannot be had."""


class CommitCandidates:
    """The commits that the bad one has and the good one has not."""

    def __init__(
        self,
        checkout: Checkout,
        worktrees: Worktrees,
        good: Commit,
        bad: Commit,
        *,
        prepare: Callable[..., Awaitable[str]] | None = None,
        logs: Path = Path(),
    ) -> None:
        self._prepare, self._logs, self._num_prepared = prepare, logs, 0
        self._checkout = checkout
        self._worktrees = worktrees
        self.good, self.bad = good.name, bad.name
        self.parents = checkout.history(good, bad)

    def commit(self, name: str) -> Commit:
        """A candidate."""
        return self._checkout.commit(name)

    def describe(self, name: str) -> str:
        """3f9c2a7 The clip is lower."""
        commit = self.commit(name)
        return f"{commit.short} {commit.subject}"

    @asynccontextmanager
    async def at(self, name: str) -> AsyncIterator[Side]:
        """Its worktree."""
        with ExitStack() as stack:
            try:
                side = stack.enter_context(self._worktrees.at(self.commit(name)))
            except GitError as error:
                raise UnavailableError(error.what) from None
            if self._prepare is not None:
                self._num_prepared += 1
                log = self._logs / f"setup-{self._num_prepared}"
                if problem := await self._prepare(side=side, log=log):
                    raise UnavailableError(f"{problem}; what it printed: {path_text(log / OUTPUT)}")
            yield side


def checked_ends(checkout: Checkout, good: str, bad: str) -> tuple[Commit, Commit]:
    """Two revisions, the first an ancestor of the second; UsageError for any others."""
    ends = checkout.commit(good), checkout.commit(bad)
    if ends[0] == ends[1]:
        raise UsageError(f"--good {good} and --bad {bad} are one commit", legal="two, the good one earlier")
    if not checkout.is_ancestor(*ends):
        turned = checkout.is_ancestor(ends[1], ends[0])
        raise UsageError(
            f"--good {good} is not an ancestor of --bad {bad}",
            legal="a good commit that is an ancestor of the bad one",
            remedy=f"--good {bad} --bad {good} searches between them; then invert the condition of --by"
            if turned
            else f"git merge-base {good} {bad} names a common ancestor",
        )
    return ends
