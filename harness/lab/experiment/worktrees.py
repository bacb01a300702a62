"""A git checkout, its commits, and worktrees of them that are gone afterwards; how a scenario is run in one.

    checkout ─ commit ─▶ worktree in TMPDIR ─▶ Side: where a run starts, what it imports ─▶ removed

The recorder is this package on every side: a directory that holds a link to it and nothing else comes first on the
import path, then what belongs to the side. `python -P` keeps the working directory, which may hold another `harness`,
from coming before both.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.bits.errors import HarnessError, UsageError
from harness.lab.experiment.launcher import OUTPUT, Launcher, Run, exit_code
from harness.lab.experiment.recording_result import how_it_ended
from harness.process.program_output import output_tail
from harness.process.scratch import make_scratch_root, remove_abandoned, remove_tree
from harness.recording.run_spec import RunSpec
from harness.trace.fingerprint import CODE

PACKAGE = Path(__file__).resolve().parents[2]
OF_ONE_CHECKOUT = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_NAMESPACE"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH"),
)
"""Variables that git sets for its hooks, and that would be obeyed in every worktree."""
CHECKOUT = "RLHARNESS_CHECKOUT"
_FIELDS = "%H%x00%h%x00%s%x00%an%x00%as"
_WORKTREE = "worktree "


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit."""

    name: str
    """Its whole hash."""
    short: str
    subject: str
    """The first line of its message."""
    author: str
    date: str
    """On which it was written: 2026-11-20."""


@dataclass(frozen=True, slots=True)
class Side:
    """From where a scenario is run: a revision, or the working tree as it is."""

    root: Path
    """Of the checkout or of the worktree."""
    cwd: Path
    environ: Mapping[str, str]
    """Variables of a process that calls an entry: this package comes first on its import path."""
    command_environ: Mapping[str, str] = field(default_factory=dict)
    """Variables of a command."""

    def environ_of(self, run_spec: RunSpec) -> Mapping[str, str]:
        """Return the variables of a run's processes."""
        return self.environ if run_spec.call is not None else self.command_environ

    def holds(self, path: str) -> bool:
        """Whether a file lies in it."""
        return Path(path).resolve().is_relative_to(self.root.resolve())


class GitError(HarnessError):
    """What git was asked for and did not do; its own words are in `what`."""


class Checkout:
    """The git checkout that a directory lies in."""

    def __init__(self, cwd: Path, environ: Mapping[str, str]) -> None:
        self._cwd = cwd.resolve()
        self.environ = {name: value for name, value in environ.items() if name not in OF_ONE_CHECKOUT}
        """Variables for runs: without those that point git to another directory."""
        try:
            self.root = Path(self._git("rev-parse", "--show-toplevel")).resolve()
        except GitError as error:
            raise UsageError(f"{cwd} is not a git checkout ({error.what})", remedy="change into one") from None

    def commit(self, revision: str) -> Commit:
        """The commit that a revision names; UsageError where there is none."""
        try:
            name = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        except GitError:
            shallow = self.is_shallow
            what = f"{revision} is not a commit here" + (", and this is a shallow clone" if shallow else "")
            remedy = "git fetch --unshallow; in GitHub Actions, fetch-depth: 0" if shallow else "git fetch, git log"
            raise UsageError(what, remedy=remedy) from None
        return Commit(*self._git("show", "--no-patch", f"--format={_FIELDS}", name).split("\0"))

    @property
    def is_shallow(self) -> bool:
        """Whether its history is cut."""
        return self._git("rev-parse", "--is-shallow-repository") == "true"

    @property
    def is_dirty(self) -> bool:
        """Whether the code differs from the commit: tracked files, or untracked ones that may be code.

        What a run writes, its traces and checkpoints, is no such file.
        """
        lines = self._git("status", "--porcelain").splitlines()
        return any(not line.startswith("?? ") or line.endswith(CODE) for line in lines)

    @property
    def user(self) -> str:
        """Who commits here, as git is configured; empty where it is not."""
        with suppress(GitError):
            return self._git("config", "user.name")
        return ""

    def default_base(self) -> Commit | None:
        """Where this branch left the default branch of origin; on that branch itself, the commit before; else None."""
        head = self._git("rev-parse", "HEAD")
        for revision in ("origin/HEAD", "origin/main", "origin/master"):
            with suppress(GitError):
                base = self._git("merge-base", "HEAD", revision)
                if base != head:
                    return self.commit(base)
                break
        with suppress(UsageError):
            return self.commit("HEAD~1")
        return None

    def is_ancestor(self, one: Commit, other: Commit) -> bool:
        """Whether a commit is another's ancestor, or the same."""
        with suppress(GitError):
            self._git("merge-base", "--is-ancestor", one.name, other.name)
            return True
        return False

    def commits(self, bad: str, goods: Sequence[str], *options: str) -> list[str]:
        """Return the commits that `bad` has and none of `goods` has, in the order of these options of git rev-list."""
        lines = self._git("rev-list", *options, bad, "--not", *goods).splitlines()
        return [line.split()[0] for line in lines]

    def add_worktree(self, commit: Commit, path: Path) -> None:
        """Check a commit out into a new directory. GitError where git cannot."""
        self._git("worktree", "add", "--quiet", "--detach", str(path), commit.name)

    def remove_worktree(self, path: Path) -> None:
        """Take a worktree away, and what git knows of it; nothing where there is none."""
        left = remove_tree(str(path))
        with suppress(GitError):  # it was not added
            self._git("worktree", "remove", "--force", "--force", str(path))
        if left:
            raise GitError(left, remedy="remove it by hand, then: git worktree prune")

    def forget_abandoned(self, parent: Path) -> None:
        """Forget worktrees of runs that were killed: those below `parent` that are no more."""
        for line in self._git("worktree", "list", "--porcelain").splitlines():
            path = Path(line.removeprefix(_WORKTREE))
            if line.startswith(_WORKTREE) and path.is_relative_to(parent) and not path.exists():
                self.remove_worktree(path)

    def side(self, root: Path, ours: Path) -> Side:
        """Return the same directory in `root`, the checkout or a worktree of it; `ours` comes from `recorder_path`.

        Whatever this process imports from the checkout, `root` is asked for: its own directory, PYTHONPATH, editable
        installs.
        """
        at = self._cwd.relative_to(self.root)
        # The directory that the interpreter was started in comes first of them, as it does in `python -m`.
        paths = [*self._moved(sys.path, root), *self._moved(self._paths("PYTHONPATH"), root, keeps=True)]
        of_entry = os.pathsep.join(dict.fromkeys([str(ours), str(root / at), *paths]))
        # A command's interpreter puts its script's directory first by itself: the working directory may hold anything.
        of_command = os.pathsep.join(dict.fromkeys(path for path in paths if path != str(root / at)))
        return Side(
            root,
            root / at,
            {**self.environ, "PYTHONPATH": of_entry},
            {**self.environ, "PYTHONPATH": of_command, "PATH": os.pathsep.join(self._programs(root))},
        )

    def _programs(self, root: Path) -> Iterator[str]:
        """Directories of programs: those of an environment in the checkout first as they are in `root`."""
        for path in map(Path, self._paths("PATH")):
            if path.is_relative_to(self.root) and (moved := root / path.relative_to(self.root)).is_dir():
                yield str(moved)
            yield str(path)

    def _paths(self, variable: str) -> list[str]:
        return [entry for entry in self.environ.get(variable, "").split(os.pathsep) if entry]

    def _moved(self, entries: Sequence[str], root: Path, *, keeps: bool = False) -> Iterator[str]:
        """Entries of an import path that lie in the checkout, as they are in `root`; `keeps`: the others too."""
        for entry in entries:
            path = (self._cwd / entry).resolve()
            if path.is_dir() and path.is_relative_to(self.root) and ".git" not in path.parts:
                inside = path.relative_to(self.root)
                if "site-packages" not in inside.parts:  # an environment that lies in the checkout is the same for all
                    yield str(root / inside)
                    continue
            if keeps:
                yield str(path)

    def _git(self, *words: str) -> str:
        """What git says; GitError with its own words where it fails. It does not hear Ctrl-C: its work is short."""
        try:
            done = subprocess.run(
                ["git", "-C", str(self._cwd), "--no-optional-locks", *words],  # reading writes nothing
                env={**self.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=True,
                process_group=0,
            )
        except FileNotFoundError:
            raise GitError("there is no git", remedy="install git") from None
        except subprocess.CalledProcessError as error:
            what = f"git {words[0]}: {error.stderr.strip() or f'exit code {error.returncode}'}"
            raise GitError(what, remedy=f"git -C {shlex.quote(str(self._cwd))} {words[0]}") from None
        return done.stdout.rstrip("\n")


class Worktrees:
    """Worktrees of one command, in a directory of its own in TMPDIR."""

    def __init__(self, checkout: Checkout, root: Path, ours: Path) -> None:
        self._checkout, self._root, self._ours = checkout, root, ours

    @property
    def working_tree(self) -> Side:
        """The checkout as it is."""
        return self._checkout.side(self._checkout.root, self._ours)

    @contextmanager
    def at(self, commit: Commit) -> Iterator[Side]:
        """A commit, checked out until this is left."""
        path = self._root / commit.short
        try:
            self._checkout.add_worktree(commit, path)
            yield self._checkout.side(path, self._ours)
        finally:
            self._checkout.remove_worktree(path)


@contextmanager
def open_worktrees(checkout: Checkout) -> Iterator[Worktrees]:
    """Make a directory for worktrees, and remove it afterwards, with any that a killed run has left."""
    scratch, held, _ = make_scratch_root(checkout.environ)
    root = Path(scratch)
    try:
        remove_abandoned(str(root.parent))
        checkout.forget_abandoned(root.parent)
        yield Worktrees(checkout, root, recorder_path(root))
    finally:
        os.close(held)
        remove_tree(str(root))


def recorder_path(parent: Path) -> Path:
    """A directory that holds this package and nothing else beside it."""
    path = parent / "recorder"
    path.mkdir()
    (path / PACKAGE.name).symlink_to(PACKAGE)
    return path


def imports_checkout(run: Run, side: Side, checkout: Path) -> bool:
    """Whether a run has imported code of its side; if none has, both sides run the same installed code.

    UsageError where a worktree's run has imported from the checkout: a tree that is compared with itself is equal.
    """
    sources = [Path(each).resolve() for report in run.recording.reports for each in report.sources]
    for source in sources:
        is_checkouts = source.is_relative_to(checkout.resolve()) and not source.is_relative_to(PACKAGE)
        if side.root != checkout and is_checkouts and not side.holds(str(source)):
            what = f"the run imports from {source}, and not from the worktree at {side.root}"
            raise UsageError(what, remedy="PYTHONPATH=src rlharness ..., or --setup COMMAND to install each revision")
    return any(side.holds(str(source)) for source in sources)


async def set_up(launcher: Launcher, command: str, side: Side, checkout: Path, log: Path) -> str:
    """Run the user's command that prepares a worktree, in its directory; return why it failed, empty where it did not.

    The variable CHECKOUT names the checkout, for data that git does not hold.
    """
    environ = {**side.command_environ, CHECKOUT: str(checkout)}
    end = await launcher.carry_out(("/bin/sh", "-c", command), log, cwd=side.cwd, environ=environ)
    if not (code := exit_code(end)):
        return ""
    return ": ".join([f"--setup ended with {how_it_ended(code)}", *output_tail(log / OUTPUT)[-1:]])
