"""Exported JSON schemas: shipped files are current, valid files are accepted, typical mistakes are rejected."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from harness.bits.exit_codes import ExitCode
from harness.cli.main import main
from harness.cli.schema import make_schema
from harness.lab.experiment.plain_yaml import read_yaml

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "harness" / "schemas"
ENTRY = "rlcore.entrypoint:run"
NAMES = {"pyproject": "pyproject.json", "scenario": "scenario.json", ENTRY: "rlcore.entrypoint.run.json"}
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))
MODELINE = "# yaml-language-server: $schema="


def faults(name: str, value: Any) -> list[str]:
    """Paths of the faults that a shipped schema finds."""
    schema = json.loads((SHIPPED / NAMES[name]).read_text("utf-8"))
    return sorted(error.json_path for error in Draft202012Validator(schema).iter_errors(value))


def grpo() -> dict[str, Any]:
    """The scenario grpo_sorting."""
    return dict(read_yaml((ROOT / "scenarios" / "grpo_sorting.yaml").read_text("utf-8"), "grpo_sorting"))


# -------------------------------------------------------------------------------------- shipped files


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_schema_is_that_which_the_command_prints(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["schema", name]) == ExitCode.OK
    assert capsys.readouterr().out == (SHIPPED / NAMES[name]).read_text("utf-8")
    assert {path.name for path in SHIPPED.iterdir()} == set(NAMES.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_schema_is_one_of_its_dialect(name: str) -> None:
    schema = json.loads((SHIPPED / NAMES[name]).read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"urn:rlharness:schema:{name}"
    assert schema["title"] and schema["description"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_are_valid_and_name_their_schema(path: Path) -> None:
    text = path.read_text("utf-8")
    first = text.splitlines()[0]
    assert first.startswith(MODELINE)
    assert (path.parent / first.removeprefix(MODELINE)).resolve() == SHIPPED / NAMES[ENTRY]
    value = read_yaml(text, path.name)
    assert faults("scenario", value) == []
    assert faults(ENTRY, value) == []


def test_the_configuration_of_this_repository_is_valid() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["rlharness"]
    assert table
    assert faults("pyproject", table) == []


# ------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("timeuot = 3", "$"),
        ("timeout = 0", "$.timeout"),
        ("device-ids = 'index'", "$['device-ids']"),
        ("gate = { scenarios = 'all' }", "$.gate.scenarios"),
        ("needs = { 'a.py' = { gpu = 1 } }", "$.needs['a.py']"),
    ],
)
def test_mistakes_in_the_configuration_are_rejected(text: str, path: str) -> None:
    assert faults("pyproject", tomllib.loads(text)) == [path]


def test_every_form_of_a_need_is_accepted() -> None:
    text = (
        "[needs]\n'a' = 2\n'b' = { gpus = 8, memory-gb = 80, min-capability = 9.0, timeout = 3600 }\n"
        "'c' = { min-capability = '9.0', gpus = 1, model = 'H100', exclusive = true }\n"
        "'d' = { min-capability = [9, 0], gpus = 1 }\n"
    )
    assert faults("pyproject", tomllib.loads(text)) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"abuot": "x"}, "$"),
        ({"about": "two\nlines"}, "$.about"),
        ({"entry": "rlcore.entrypoint.run"}, "$.entry"),
        ({"runtime_sections": "output"}, "$.runtime_sections"),
        ({"resume": {"run": "output.resume"}}, "$.resume"),
        ({"chaos": {"factors": {"nodot": [1]}}}, "$.chaos.factors"),
    ],
)
def test_mistakes_in_a_scenario_are_rejected(change: dict[str, Any], path: str) -> None:
    for name in ("scenario", ENTRY):
        assert faults(name, {**grpo(), **change}) == [path]


@pytest.mark.parametrize(
    ("section", "change", "path"),
    [
        ("training", {"num_stpes": 3}, "$.config.training"),
        ("training", {"num_steps": 0}, "$.config.training.num_steps"),
        ("optimizer", {"learning_rate": "3e-4"}, "$.config.optimizer.learning_rate"),
        ("task", {"name": "chess"}, "$.config.task.name"),
    ],
)
def test_mistakes_in_a_configuration_are_rejected_by_the_schema_of_its_entry(
    section: str, change: dict[str, Any], path: str
) -> None:
    scenario = grpo()
    scenario["config"] = {**scenario["config"], section: {**scenario["config"].get(section, {}), **change}}
    assert faults(ENTRY, scenario) == [path]
    assert faults("scenario", scenario) == []


# ---------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def run() -> None: ...\n", "has no function config_schema"),
        ("raise RuntimeError('no licence')\n", "cannot be imported: no licence"),
    ],
)
def test_an_entry_without_a_schema_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str, said: str
) -> None:
    own_project(tmp_path, source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "entry_without_schema", raising=False)
    assert main(["schema", "entry_without_schema:run"]) == ExitCode.USAGE_ERROR
    assert said in capsys.readouterr().err


def own_project(directory: Path, source: str) -> None:
    """A project with a scenario, whose entry is in a module of its own."""
    (directory / "scenarios").mkdir()
    (directory / "entry_without_schema.py").write_text(source, "utf-8")
    text = "about: a\nentry: entry_without_schema:run\ndeterminism: off\n"
    (directory / "scenarios" / "mine.yaml").write_text(text, "utf-8")


def test_a_name_that_is_no_schema_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "scenarios"]) == ExitCode.USAGE_ERROR
    assert ENTRY in capsys.readouterr().err


def test_an_own_entry_describes_its_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_project(
        tmp_path,
        "def config_schema():\n    return {'type': 'object', 'properties': {'part': {'$ref': '#/$defs/Part'}},"
        " '$defs': {'Part': {'type': 'integer'}}}\n",
    )
    monkeypatch.delitem(sys.modules, "entry_without_schema", raising=False)
    schema = make_schema("entry_without_schema:run", tmp_path)
    scenario = {"about": "a", "entry": "entry_without_schema:run", "determinism": "off", "config": {"part": "x"}}
    assert [each.json_path for each in Draft202012Validator(schema).iter_errors(scenario)] == ["$.config.part"]
    assert str(tmp_path) not in sys.path
