"""The example project: writes a copy of the files in `project/` to the directory of a demo."""

from collections.abc import Iterator
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.files import read_text, write_replacing
from harness.bits.text import path_text

FILES = Path(__file__).parent / "project"
"""Directory of the files that are copied, comments and all."""
SETTINGS = "pyproject.toml"
FIRST_LINE = (FILES / SETTINGS).read_text("utf-8").partition("\n")[0]
"""Line that marks a directory as a demo's own."""
TRAIN = "train.py"
RESULTS = (".rlharness", ".pytest_cache", "__pycache__")
"""Directories that the commands of a demo make in it; nothing in them is imported without a source of ours."""
PAGES = (".html", ".json", ".md", ".rlb", ".txt", ".xml")
"""Endings of files that may be kept there: neither Python nor pytest takes them for code or settings."""


def write_project(directory: Path) -> None:
    """Write the example project to `directory`, which is new, empty, or that of an earlier demo.

    Files of an earlier demo are written anew; results in it are kept. Raises UsageError for any other directory, one
    with links or files of others, and if nothing can be written.
    """
    try:
        if directory.exists() and not _is_usable(directory):
            raise UsageError(
                f"{path_text(directory)} exists, and `rlharness demo` did not write it, or not all of it",
                legal="a directory that is new, empty, or that of an earlier demo",
                remedy="name another one: rlharness demo --out DIR",
            )
        for name in _names():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_replacing(target, (FILES / name).read_bytes())
    except OSError as error:
        raise UsageError(
            f"the demo cannot be written to {path_text(directory)}: {error.strerror}",
            legal="a directory in which this user may write",
            remedy="name another one: rlharness demo --out DIR",
        ) from None


def suite_files() -> tuple[str, ...]:
    """Return the paths of the test files of the project, relative to its directory, in order."""
    return tuple(path.relative_to(FILES).as_posix() for path in sorted((FILES / "tests").glob("test_*.py")))


def _names() -> list[str]:
    """Return the paths of all files of the project, relative to its directory."""
    sources = (path for path in FILES.rglob("*") if path.is_file() and path.suffix in (".py", ".toml"))
    return sorted(path.relative_to(FILES).as_posix() for path in sources)


def _is_usable(directory: Path) -> bool:
    """Return whether a directory is empty, or that of an earlier demo and of nothing else.

    A checkout may bring a directory of this name: a file that a demo does not write could be run by one. OSError if it
    cannot be read.
    """
    settings = directory / SETTINGS
    if not settings.is_file():
        return directory.is_dir() and next(directory.iterdir(), None) is None
    is_marked = read_text(settings, errors="replace").partition("\n")[0] == FIRST_LINE
    return is_marked and not directory.is_symlink() and next(_strangers(directory), None) is None


def _strangers(directory: Path) -> Iterator[Path]:
    """Yield links, and files that no command writes, in the directory of a demo."""
    own = {directory / name for name in _names()}
    folders = {path.parent for path in own}
    for path in (path for folder in sorted(folders) if folder.is_dir() for path in folder.iterdir()):
        is_own = path in own or path in folders or path.name in RESULTS or path.suffix in PAGES
        if path.is_symlink() or not is_own:
            yield path
