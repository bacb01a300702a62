"""Options of a collection, and what it asks of the run: processes, and what earlier runs collected."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol

from harness.process.supervisor_client import ProcessSpec
from harness.runner.need import NeedRule
from harness.runner.records.collected_file import CollectedFile


class MakeSpec(Protocol):
    """Makes the attempt of one collection child: the interpreter before `pytest_args`, its environment, its marker."""

    def __call__(
        self,
        pytest_args: tuple[str, ...],
        directory: Path,
        timeout_s: float,
        session: Mapping[str, Any] | None,
        /,
    ) -> ProcessSpec:
        """`directory` exists and is the child's own; a TMPDIR in it goes with it.

        `session` tells a fork of the warm session the same as `pytest_args` tell an interpreter; None where only an
        interpreter will do.
        """


class Memory(Protocol):
    """What earlier runs collected: `History` outside tests."""

    def collected_files(self, keys: Mapping[str, str], /) -> dict[str, CollectedFile]:
        """Return what is known of the files of `keys` (path -> key) whose key is still the same."""

    def keep_collected(self, files: Mapping[str, tuple[str, CollectedFile]], /) -> None:
        """Keep what was collected from files (path -> key, file)."""


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Options that shape a collection, apart from the paths."""

    cwd: Path
    """The working directory of every child: paths are relative to it."""
    directory: Path
    """Made for the children, and removed with all that is in it."""
    timeout_s: float
    """Limit of each child."""
    limit: int
    """Number of import children at a time."""
    pytest_args: tuple[str, ...] = ()
    needs: tuple[NeedRule, ...] = ()
    distrusted: Callable[[Path], frozenset[str]] = lambda rootdir: frozenset()
    """Files, relative to the root directory, to import: their need was once not the one that the plan had."""
    memory: Memory | None = None
    context: str = ""
    """Inputs that decide the tests of a file, beside its text and that of its dependencies."""
    file_timeout_s: float = inf
    """Limit on a file of the run, which holds for its import too."""
    imports_all: bool = False
    """Import every file, so that those in which no test is selected do not run."""
    preload: Callable[[Sequence[str]], Awaitable[None]] | None = None
    """Given the modules that several of the files import, before one is imported."""
    finds_node_ids: bool = False
    """Whether to find all tests that node ids name, which imports their files; a run asks only for those that are not
    among the known tests of their file, and learns of the others from its units."""

    @property
    def import_limit_s(self) -> float:
        """Limit of a child that imports one file."""
        return min(self.timeout_s, self.file_timeout_s)
