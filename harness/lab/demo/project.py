"""The example project: writes a copy of the files in `project/` to the directory of a demo."""

from pathlib import Path

from harness.core.errors import UsageError
from harness.core.regular_file import read_text
from harness.core.replaced_file import write_replacing
from harness.core.text import path_text

FILES = Path(__file__).parent / "project"
"""Directory of the files that are copied, comments and all."""
SETTINGS = "pyproject.toml"
FIRST_LINE = (FILES / SETTINGS).read_text("utf-8").partition("\n")[0]
"""Line that marks a directory as a demo's own."""
TRAIN = "train.py"


def write_project(directory: Path) -> None:
    """Write the example project to `directory`, which is new, empty, or that of an earlier demo.

    Files of an earlier demo are written anew; results in it are kept. Raises UsageError for any other directory, and
    if nothing can be written.
    """
    try:
        if directory.exists() and not _is_usable(directory):
            raise UsageError(
                f"{path_text(directory)} exists, and `rlharness demo` did not write it",
                legal="a directory that is new, empty, or that of an earlier demo",
                remedy="name another one: rlharness demo --out DIR",
            )
        for source in sorted(path for path in FILES.rglob("*") if path.is_file() and path.suffix in (".py", ".toml")):
            target = directory / source.relative_to(FILES)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_replacing(target, source.read_bytes())
    except OSError as error:
        raise UsageError(
            f"the demo cannot be written to {path_text(directory)}: {error.strerror}",
            legal="a directory in which this user may write",
            remedy="name another one: rlharness demo --out DIR",
        ) from None


def suite_files() -> tuple[str, ...]:
    """Return the paths of the test files of the project, relative to its directory, in order."""
    return tuple(path.relative_to(FILES).as_posix() for path in sorted((FILES / "tests").glob("test_*.py")))


def _is_usable(directory: Path) -> bool:
    """Return whether a directory is empty, or holds the settings of an earlier demo; OSError if it cannot be read."""
    settings = directory / SETTINGS
    if settings.is_file():
        return read_text(settings, errors="replace").partition("\n")[0] == FIRST_LINE
    return directory.is_dir() and next(directory.iterdir(), None) is None
