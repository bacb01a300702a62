"""The command line over the configuration over the defaults; colours; the package that would hide ours."""

import os
from pathlib import Path
from typing import Any

import pytest

from harness.bits.errors import UsageError
from harness.cli.main import cli
from harness.cli.run import make_options
from harness.process.invocation import Invocation, num_cores, wants_colour
from harness.runner.need import Need
from harness.runner.options import RunOptions, runs_parts_of_files

GIVEN: dict[str, Any] = cli.commands["run"].make_context("run", []).params


def options(cwd: Path, text: str = "", environ: dict[str, str] | None = None, **given: Any) -> RunOptions:
    if text:
        (cwd / "pyproject.toml").write_text(f"[tool.rlharness]\n{text}")
    return make_options(Invocation(cwd, environ or {}), GIVEN | given)


def test_defaults_are_those_that_help_names(tmp_path: Path) -> None:
    one = options(tmp_path)
    assert (one.timeout_s, one.grace_s, one.slow_s, one.collect_timeout_s) == (1800.0, 10.0, 60.0, 120.0)
    assert (one.maxfail, one.allow_missing_gpus, one.mix_models, one.keep_tmp) == (0, False, False, False)
    assert one.cpu_units == num_cores() == len(os.sched_getaffinity(0))
    assert (one.root, one.needs, one.live, one.colour) == (tmp_path, (), False, False)


@pytest.mark.parametrize(
    ("name", "text", "given", "values"),
    [
        ("timeout_s", "timeout = 5", {"timeout_s": 7.0}, (5.0, 7.0)),
        ("grace_s", "grace = 5", {"grace_s": 0.0}, (5.0, 0.0)),
        ("slow_s", "slow = 5", {"slow_s": 0.0}, (5.0, 0.0)),
        ("wait_s", "wait = 5", {"wait_s": 0.0}, (5.0, 0.0)),
        ("collect_timeout_s", "collect-timeout = 5", {"collect_timeout_s": 7.0}, (5.0, 7.0)),
        ("maxfail", "maxfail = 5", {"maxfail": 0}, (5, 0)),
        ("cpu_units", "cpu-units = 5", {"cpu_units": 7}, (5, 7)),
        ("allow_missing_gpus", "allow-missing-gpus = true", {"allow_missing_gpus": False}, (True, False)),
        ("mix_models", "mix-models = true", {"mix_models": False}, (True, False)),
    ],
)
def test_the_command_line_stands_over_the_configuration(
    tmp_path: Path, name: str, text: str, given: dict[str, Any], values: tuple[Any, Any]
) -> None:
    configured, wins = values
    assert getattr(options(tmp_path, text), name) == configured
    assert getattr(options(tmp_path, text, **given), name) == wins


def test_needs_of_the_command_line_come_last(tmp_path: Path) -> None:
    (tmp_path / "needs.toml").write_text('"*.py" = 4\n')
    rules = options(tmp_path, 'needs = {"*.py" = 2}', needs_file=tmp_path / "needs.toml").needs
    assert [rule.need for rule in rules] == [Need(gpus=2), Need(gpus=4)]


def test_a_package_of_our_name_is_refused_where_pytest_would_not_find_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").touch()
    assert not options(tmp_path).safe_path, "its entry point leads to it"
    monkeypatch.setattr("harness.cli.run.entry_points", lambda **kwargs: ())
    with pytest.raises(UsageError) as caught:
        options(tmp_path)
    assert str(tmp_path / "harness") in caught.value.what
    assert "--safe-path" in caught.value.remedy
    assert options(tmp_path, safe_path=True).safe_path


@pytest.mark.parametrize(
    ("is_terminal", "given", "live"),
    [(True, {}, True), (True, {"plain": True}, False), (True, {"is_json": True}, False), (False, {}, False)],
)
def test_the_live_display_wants_a_terminal_of_its_own(
    tmp_path: Path, is_terminal: bool, given: dict[str, Any], live: bool
) -> None:
    invocation = Invocation(tmp_path, {}, is_terminal=is_terminal)
    assert make_options(invocation, GIVEN | given).live is live


@pytest.mark.parametrize(
    ("choice", "environ", "is_terminal", "colour"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": ""}, False, False),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colours(choice: str, environ: dict[str, str], is_terminal: bool, colour: bool) -> None:
    assert wants_colour(choice, Invocation(Path("/"), environ, is_terminal=is_terminal)) is colour


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ((), False),
        (("-q", "--tb=short", "-p", "no:randomly"), False),
        (("-k", "fast"), True),
        (("-kfast",), True),
        (("-m", "slow"), True),
        (("-m", ""), False),
        (("-m", "slow", "-m", ""), False),
        (("-m", "", "-k", "fast"), True),
        (("--deselect=tests/test_a.py::test_x",), True),
        (("--lf",), True),
        (("-x",), True),
    ],
)
def test_a_selection_by_pytest_teaches_no_durations(args: tuple[str, ...], parts: bool) -> None:
    assert runs_parts_of_files(args) is parts


def test_options_that_select_tests_are_given_to_pytest_before_those_after_two_dashes(tmp_path: Path) -> None:
    invocation = Invocation(tmp_path, {}, trailing=("-m", "slow"))
    given = {"keyword": "fast", "marker": "", "deselect": ("test_a.py", "test_b.py::test_x")}
    selecting = ("-k", "fast", "-m", "", "--deselect=test_a.py", "--deselect=test_b.py::test_x")
    assert make_options(invocation, GIVEN | given).invocation.trailing == (*selecting, "-m", "slow")
    assert make_options(invocation, GIVEN).invocation.trailing == ("-m", "slow")


def test_a_run_started_elsewhere_obeys_the_configuration_of_its_suite(tmp_path: Path) -> None:
    suite, elsewhere = tmp_path / "suite", tmp_path / "elsewhere"
    suite.mkdir()
    elsewhere.mkdir()
    (suite / "pyproject.toml").write_text("[tool.rlharness]\ntimeout = 12\n")
    (suite / "test_x.py").touch()
    notes: list[str] = []
    given = GIVEN | {"paths": ("../suite/test_x.py::test_a[b::c]",)}
    one = make_options(Invocation(elsewhere, {}, note=notes.append), given)
    assert (one.timeout_s, one.root, one.results_root) == (12.0, suite, suite)
    assert notes == [f"configuration: {suite / 'pyproject.toml'}"]
    inside = make_options(Invocation(suite, {}, note=notes.append), GIVEN | {"paths": ("test_x.py",)})
    assert (inside.timeout_s, len(notes)) == (12.0, 1)
