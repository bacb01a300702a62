"""Every command, option and documented key has a row, and every row has its command, option or key."""

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.guards.features.feature import Feature
from tests.guards.guard import ROOT, Row, rlharness

UNCOVERED = Path(__file__).with_name("uncovered.txt")
"""Names that have no row yet, one a line."""
_SCHEMAS = ("pyproject", "scenario", "rlcore.entrypoint:run")
_KINDS = ("command ", "[tool.rlharness] ", "scenario ", "engine ")


def unlisted(features: Sequence[Feature], work: Path) -> Iterator[Row]:
    """Compare the rows with the help of each command and the schemas."""
    existing = names(work)
    commands = {name.removeprefix("command ") for name in existing if name.startswith("command ")}
    uncovered = {line for line in UNCOVERED.read_text("utf-8").splitlines() if line}
    shown = {feature.name for feature in features}
    tables = {each for each in existing if any(name.startswith(f"{each}.") for name in existing)}
    for name in sorted(existing - shown - tables):
        yield Row(name, missing="no row yet") if name in uncovered else Row(name, "no row shows it")
    for name in sorted(shown - existing):
        is_option = re.fullmatch(r"[a-z]+ (-[a-z]|--[a-z-]+[a-z])", name) and name.split(" ")[0] in commands
        if is_option or name.startswith(_KINDS):
            yield Row(name, "a row shows it, and it does not exist")
    for name in sorted(uncovered & shown | uncovered - existing):
        yield Row(name, f"{UNCOVERED.name} lists it, and it has a row or does not exist")


def names(work: Path) -> set[str]:
    """Return the name of every command, option and key that help and schemas document."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    work.mkdir(parents=True, exist_ok=True)

    def output(*arguments: str) -> str:
        done = rlharness(*arguments, cwd=work, env=env, python=sys.executable)
        if done.returncode:
            raise ValueError(f"rlharness {' '.join(arguments)} exits with {done.returncode}: {done.stderr}")
        return done.stdout

    text = output("--help")
    commands = re.findall(r"^  ([a-z]+)  ", text.partition("\nCommands:")[2], re.MULTILINE)
    with ThreadPoolExecutor(2) as pool:
        helps = list(pool.map(lambda name: output(name, "--help"), commands))
        pyproject, scenario, entry = pool.map(lambda name: json.loads(output("schema", name)), _SCHEMAS)
    found = {f"command {name}" for name in commands} | {f"rlharness {option}" for option in options(text)}
    for name, page in zip(commands, helps, strict=True):
        found |= {f"{name} {option}" for option in options(page) if option != "--help"}
    found |= {f"[tool.rlharness] {key}" for key in _keys(pyproject, pyproject)}
    found |= {f"scenario {key}" for key in _keys(scenario, scenario)}
    config = _resolved(entry["properties"]["config"], entry)
    found |= {f"engine {key}" for key in _keys(config, entry)}
    return found


def options(page: str) -> set[str]:
    """Return the options of a help page; the last name of each, and both of --this / --not-this."""
    lines = re.findall(r"^  (--?[a-z].*?)(?:  |$)", page, re.MULTILINE)  # in whichever section
    longest = [
        max((word.split()[0] for word in part.split(", ")), key=len) for line in lines for part in line.split(" / ")
    ]
    return set(longest)


def _resolved(schema: Any, document: Any) -> Any:
    while "$ref" in schema:
        schema = document["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def _keys(schema: Any, document: Any) -> Iterator[str]:
    """Yield each dotted key of an object; of a table by pattern or name, the keys of its entries."""
    schema = _resolved(schema, document)
    for name, each in schema.get("properties", {}).items():
        yield name
        entries = each.get("additionalProperties")
        alternatives = [each, *each.get("anyOf", ()), *each.get("oneOf", ())]
        if isinstance(entries, dict) and name == "needs":
            alternatives += [entries, *entries.get("anyOf", ())]
        for alternative in alternatives:
            yield from (f"{name}.{key}" for key in _keys(alternative, document))
