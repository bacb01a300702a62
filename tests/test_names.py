"""Public modules, classes, functions, options and keys use the field's terms, one word per concept."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from harness.cli.main import cli
from harness.lab.experiment.scenario import Scenario
from rlcore.config import RunConfig

ROOT = Path(__file__).parent.parent
BANNED = {
    "card": "gpu",
    "cards": "gpus",
    "leaf": "recorded value",
    "leaves": "recorded values",
    "lane": "fixed microbatch",
    "envelope": "run spec",
    "whole": "global value, complete",
    "wholes": "global values",
    "graft": "patch",
    "tell": "report",
    "told": "format, report",
    "judge": "compare, classify",
    "judged": "compared, classified",
    "judgement": "comparison",
    "bench": "executor",
    "hunt": "search",
    "foreign": "command",
    "orders": "recording config",
    "watcher": "recorder callback",
    "stood": "paused",
    "learner": "trainable model",
    "mixer": "attention backend",
    "draft": "running sequence",
    "bystanders": "untracked state",
    "switches": "flags",
    "scene": "context",
    "tier": "backend",
    "tiers": "backends",
    "refusal": "rejection",
    "recipe": "strategy",
    "certificate": "invariance report",
    "picks": "rules",
    "facing": "paired",
    "bystander": "untracked state",
    "utils": "the name of what it holds",
    "helpers": "the name of what it holds",
    "misc": "the name of what it holds",
    "manager": "the name of what it does",
}
"""By word, the term to use."""
EXEMPT = {
    "lanes": "SIMD lanes",
    "shardsum_lanes": "SIMD lanes",
    "lanes_digest": "SIMD lanes",
    "lanes_by_kernel": "SIMD lanes",
    "lanes_by_torch": "SIMD lanes",
    "leaf_hash": "a leaf of a Merkle tree",
    "whole_numbers": "integers",
}
"""By name, what the word means there."""


def words_of(name: str) -> list[str]:
    """Return the lower-case words of a name in snake, kebab or camel case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def breaches(names: Iterator[tuple[str, str]]) -> list[str]:
    """Return a line for each banned word in (where, name)."""
    return [
        f"{where}: {name} has {word!r}; say {BANNED[word]}"
        for where, name in names
        if name not in EXEMPT
        for word in words_of(name)
        if word in BANNED
    ]


def public_names(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """Yield (where, name) of a module and of its public classes and functions, methods among them."""
    where = path.as_posix()
    yield where, path.stem
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield where, node.name


@pytest.mark.parametrize("package", ["harness", "rlcore"])
def test_modules_classes_and_functions_use_the_terms(package: str) -> None:
    paths = [path for path in sorted((ROOT / package).rglob("*.py")) if "project" not in path.parts]
    names = (each for path in paths for each in public_names(path.relative_to(ROOT), path.read_text("utf-8")))
    assert breaches(names) == []


def test_options_and_keys_use_the_terms() -> None:
    options = [
        (f"rlharness {name}", option.lstrip("-"))
        for name in cli.list_commands(click.Context(cli))
        for param in (cli.get_command(click.Context(cli), name) or click.Command(None)).params
        for option in (*param.opts, *param.secondary_opts)
    ]
    keys = [("scenario file", key) for key in Scenario.model_fields]
    keys += [(section, section) for section in RunConfig.model_fields]
    for section, field in RunConfig.model_fields.items():
        keys += [(section, key) for key in getattr(field.annotation, "model_fields", ())]
    assert breaches(iter(options + keys)) == []


def test_a_banned_word_is_found_in_every_kind_of_name() -> None:
    text = "class CardChoice:\n    def judge(self): ...\n\ndef _told(): ...\ndef leaf_of(): ...\n"
    found = breaches(public_names(Path("harness/graft.py"), text))
    assert [line.split(": ")[1].split()[0] for line in found] == ["graft", "CardChoice", "leaf_of", "judge"]
