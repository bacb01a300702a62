"""Names of scenarios, without reading their files: light enough for the completion of a shell."""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

PACKAGE = "scenarios"
ENDINGS = (".yaml", ".yml")


def scenario_names(cwd: Path) -> list[str]:
    """Return the names of the scenarios of the package and of the user's project, sorted."""
    places = (resources.files(PACKAGE), cwd / PACKAGE)
    return sorted(
        {name_of(file) for place in places if place.is_dir() for file in place.iterdir() if is_scenario_file(file)}
    )


def is_scenario_file(file: Traversable) -> bool:
    """Return whether a file should hold a scenario, by its name."""
    return file.name.endswith(ENDINGS) and file.is_file()


def name_of(file: Traversable) -> str:
    """Return the name of the scenario in a file."""
    return file.name.rpartition(".")[0]
