"""Where scenarios are: a file that is named, a table of pyproject.toml, the directory `scenarios` of the project, those
of the package."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.files import MAX_SETTINGS_BYTES, read_text
from harness.lab.experiments.scenario import Scenario, parse_fields, parse_scenario
from harness.lab.experiments.scenario_names import ENDINGS, PACKAGE, is_scenario_file, name_of
from harness.runner.config import load_config

A_COMMAND = "a command after --"
"""The alternative to a scenario, for commands that accept it."""


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """A file that should hold a scenario."""

    name: str
    """What a person types."""
    file: Traversable
    table: Mapping[str, Any] | None = None
    """The table of pyproject.toml, where it is one."""

    def read(self, *extending: Traversable) -> Scenario:
        """Read the scenario in it; UsageError if the file cannot be read or is not a scenario.

        `extending` are the files that extend this one.
        """
        if self.table is not None:
            fields = {key.replace("-", "_"): value for key, value in self.table.items() if key != "name"}
            return parse_fields(fields, f"{self.file}: scenario {self.name}")
        try:
            text = (
                read_text(self.file, max_bytes=MAX_SETTINGS_BYTES, follows_links=True)
                if isinstance(self.file, Path)
                else self.file.read_text("utf-8")
            )
        except (OSError, UnicodeDecodeError) as error:
            what = f": {error.strerror}" if isinstance(error, OSError) else f" is not a text file: {error.reason}"
            raise UsageError(f"{self.file}{what}", legal="YAML in UTF-8") from None

        def base_of(name: str) -> Scenario:
            directory = self.file.parent if isinstance(self.file, Path) else Path()
            is_name = not name.endswith(ENDINGS) and directory.name == PACKAGE
            base, files = find_scenario(name, directory.parent if is_name else directory), (*extending, self.file)
            if base.file in files:
                raise UsageError(f"{self.file} extends {name}, which extends it")
            return base.read(*files)

        return parse_scenario(text, str(self.file), base_of)


def all_scenarios(cwd: Path) -> list[ScenarioFile]:
    """Every one that has a name, by name; of two with one name that of the user's project."""
    found = {each.name: each for place in (resources.files(PACKAGE), cwd / PACKAGE) for each in _in(place)}
    config = load_config(cwd)
    for table in config.scenarios:
        assert config.path is not None
        name = str(table["name"])
        if name in found and found[name].table is not None:
            raise UsageError(f"{config.path} has two scenarios {name!r}", legal="a name of its own for each")
        found[name] = ScenarioFile(name, config.path, table)
    return [found[name] for name in sorted(found)]


def find_scenario(name: str, cwd: Path, *others: str) -> ScenarioFile:
    """The scenario of a name, or in a file; UsageError, with the nearest names, where there is none.

    `others` are the alternatives to it.
    """
    if name.endswith(ENDINGS) or "/" in name:
        if not (cwd / name).is_file():
            raise UsageError(
                f"there is no file {name}",
                legal="; ".join(["a YAML file, or a name listed by rlharness scenarios", *others]),
                remedy="check the spelling and the working directory",
            )
        return ScenarioFile(name, cwd / name)
    known = {each.name: each for each in all_scenarios(cwd)}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
        remedy = f"did you mean {' or '.join(near)}?" if near else "rlharness scenarios describes each"
        raise UsageError(
            f"there is no scenario {name!r}",
            legal="; ".join([f"{', '.join(known)}, or a YAML file", *others]),
            remedy=remedy,
        )
    return known[name]


def nothing_to_run(command: str, cwd: Path) -> UsageError:
    """That a command was typed with nothing to run."""
    names = ", ".join(each.name for each in all_scenarios(cwd))
    return UsageError(
        f"rlharness {command} needs a scenario or a command",
        legal=f"a scenario: {names}, or a YAML file; {A_COMMAND}",
        remedy=f"rlharness {command} SCENARIO, or rlharness {command} -- python train.py",
    )


def _in(place: Traversable) -> Iterator[ScenarioFile]:
    if place.is_dir():
        for file in place.iterdir():
            if is_scenario_file(file):
                yield ScenarioFile(name_of(file), file)
