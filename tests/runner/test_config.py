"""The configuration: what is read, and what a wrong value is told."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.bits.files import MAX_SETTINGS_BYTES
from harness.runner.config import Config, GateKeys, load_config, load_config_for, load_needs_file
from harness.runner.need import Need, NeedRule, NeedsTable


def configured(tmp_path: Path, text: str) -> Config:
    (tmp_path / "pyproject.toml").write_text(text)
    return load_config(tmp_path)


def refused(tmp_path: Path, text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        configured(tmp_path, f"[tool.rlharness]\n{text}")
    return caught.value


def test_without_a_table_nothing_is_set(tmp_path: Path) -> None:
    assert configured(tmp_path, "[project]\nname = 'x'") == load_config(tmp_path / "deep" / "down") == Config()


def test_the_nearest_file_with_a_table_counts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.rlharness]\ntimeout = 1\n")
    package = tmp_path / "package"
    package.mkdir()
    (package / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert load_config(package).timeout_s == 1.0
    (package / "pyproject.toml").write_text("[tool.rlharness]\ntimeout = 2\n")
    assert load_config(package).timeout_s == 2.0
    assert load_config(package).path == package / "pyproject.toml"


def project(directory: Path, timeout_s: int = 0) -> Path:
    """A directory with a test file, and a configuration if it has a timeout; the file."""
    directory.mkdir(parents=True)
    if timeout_s:
        (directory / "pyproject.toml").write_text(f"[tool.rlharness]\ntimeout = {timeout_s}\n")
    (directory / "test_x.py").touch()
    return directory / "test_x.py"


def test_the_configuration_is_that_of_the_paths_wherever_the_command_starts(tmp_path: Path) -> None:
    one, two, bare, cwd = (project(tmp_path / name, n) for name, n in (("1", 1), ("2", 2), ("3", 0), ("cwd", 4)))
    assert load_config_for([one], cwd.parent).timeout_s == 1.0
    assert load_config_for([one.parent], cwd.parent).timeout_s == 1.0
    assert load_config_for([bare, two], cwd.parent).timeout_s == 2.0
    assert load_config_for([bare], cwd.parent).timeout_s == load_config_for([], cwd.parent).timeout_s == 4.0
    assert load_config_for([tmp_path / "missing"], cwd.parent).timeout_s == 4.0


def test_paths_of_two_projects_need_a_configuration_above_both(tmp_path: Path) -> None:
    paths = [project(tmp_path / "1", 1), project(tmp_path / "2", 2)]
    with pytest.raises(UsageError) as caught:
        load_config_for(paths, tmp_path)
    assert all(str(path.parent / "pyproject.toml") in str(caught.value) for path in paths)
    (tmp_path / "pyproject.toml").write_text("[tool.rlharness]\ntimeout = 3\n")
    assert load_config_for(paths, tmp_path / "1").timeout_s == 3.0


def test_the_gate_has_a_table_of_its_own(tmp_path: Path) -> None:
    text = """
        [tool.rlharness.gate]
        scenarios = ["a", "b"]
        size = "smoke"
        runs = 3
        golden = "goldens"
        fail-on = ["behaviour"]
        timeout = 60
        """
    assert configured(tmp_path, text).gate == GateKeys(["a", "b"], "smoke", 3, "goldens", ["behaviour"], 60)
    assert configured(tmp_path, "[tool.rlharness]").gate == GateKeys()
    near = refused(tmp_path, "[tool.rlharness.gate]\nfail_on = []")
    assert near.what.endswith("pyproject.toml: [tool.rlharness.gate] has no key 'fail_on'")
    assert near.remedy == "did you mean 'fail-on'?"
    for value in ("runs = 0", 'scenarios = "a"', "golden = ''"):
        assert value.split()[0] in refused(tmp_path, f"[tool.rlharness.gate]\n{value}").what
    assert refused(tmp_path, "gate = 3").legal == "a table"


@pytest.mark.parametrize(
    ("text", "what", "legal"),
    [
        ("timeout = 'long'", "timeout = 'long'", "seconds, above 0"),
        ("timeout = 0", "timeout = 0", "seconds, above 0"),
        ("timeout = true", "timeout = True", "seconds, above 0"),
        ("timeout = inf", "timeout = inf", "seconds, above 0"),
        ("grace = -1", "grace = -1", "seconds, 0 or more"),
        ("cpu-units = 0", "cpu-units = 0", "a whole number, 1 or more"),
        ("cpu-units = 1.5", "cpu-units = 1.5", "a whole number, 1 or more"),
        ("mix-models = 1", "mix-models = 1", "true or false"),
        ("maxfail = true", "maxfail = True", "a whole number, 0 or more"),
        ("needs = 2", "needs is 2", "a table of patterns"),
        ("needs.'a*' = -1", "'a*' gpus = -1", "a whole number, 0 or more"),
        ("needs.'a*' = true", "'a*' gpus = True", "a whole number, 0 or more"),
        ("needs.'# a' = 1", "'# a' matches nothing", "a pattern as in .gitignore"),
        ("needs.'a*' = 'two'", "'a*' gpus = 'two'", "a whole number, 0 or more"),
        ("needs.'a*' = {gpus = 1, memory-gb = 'x'}", "'a*' memory-gb = 'x'", "GB per GPU, 0 or more"),
        ("needs.'a*' = {gpus = 1, model = ''}", "'a*' model = ''", "a part of the GPU's name, such as 'H100'"),
        ("needs.'a*' = {gpus = 1, min-capability = 'x'}", "'a*' min_capability 'x'", "9.0, '9.0' or (9, 0)"),
        ("needs.'a*' = {memory-gb = 40}", "'a*' describes 0 GPUs", "1 or more GPUs with memory_gb"),
        ("needs.'a*' = {gpus = 2, memory-gb = 12, shared = true}", "'a*' shared with 2 GPUs", "gpus(1, memory_gb=12"),
        ("needs.'a*' = {gpus = 1, shared = true}", "memory_gb 0", "gpus(1, memory_gb=12"),
        (
            "needs.'a*' = {gpus = 1, memory-gb = 12, exclusive = true, shared = true}",
            "'a*' shared with 1 GPUs, memory_gb 12, exclusive True",
            "gpus(1, memory_gb=12",
        ),
        ("needs.'a*' = {gpus = 1, memory-gb = 12, shared = 1}", "'a*' shared = 1", "true or false"),
        ("needs.'!a*' = 1", "'!a*' matches nothing", "a pattern as in .gitignore"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_legal(tmp_path: Path, text: str, what: str, legal: str) -> None:
    error = refused(tmp_path, text)
    assert what in error.what
    assert str(tmp_path / "pyproject.toml") in error.what
    assert error.legal.startswith(legal)


@pytest.mark.parametrize(
    ("text", "unknown", "near"),
    [
        ("time-out = 5", "'time-out'", "'timeout'"),
        ("need = 5", "'need'", "'needs'"),
        ("needs.'a*' = {gpu = 1}", "'gpu'", "'gpus'"),
        ("needs.'a*' = {gpus = 1, mem = 3}", "'mem'", "'memory-gb'"),
        ("needs.'a*' = {gpus = 1, memory_gb = 3}", "'memory_gb'", "'memory-gb'"),
        ("path = 'x'", "'path'", ""),
    ],
)
def test_an_unknown_key_is_told_the_nearest_one(tmp_path: Path, text: str, unknown: str, near: str) -> None:
    error = refused(tmp_path, text)
    assert f"has no key {unknown}" in error.what
    assert near in error.remedy
    assert near.strip("'") in error.legal


@pytest.mark.parametrize("text", ["junit = 'x'", "zzz = 1"])
def test_no_key_is_suggested_if_none_is_similar(tmp_path: Path, text: str) -> None:
    assert refused(tmp_path, text).remedy == f"remove {text.partition(' ')[0]}"


@pytest.mark.parametrize("text", ["timeout = ", "[tool.rlharness", "\x00"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"pyproject\.toml is not valid TOML"):
        configured(tmp_path, text)


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\[tool\.rlharness\] is 3"):
        configured(tmp_path, "tool.rlharness = 3")


def test_a_needs_file_is_the_table_itself(tmp_path: Path) -> None:
    path = tmp_path / "needs.toml"
    path.write_text(
        '"a*" = 2\n"b*" = { gpus = 1, min-capability = [8, 6] }\n"t/" = { timeout = 7200 }\n'
        '"*_big.py" = { gpus = 8, memory-gb = 80, model = "H100", min-capability = 9.0, '
        "exclusive = true, timeout = 9 }\n"
        '"s*" = { gpus = 1, memory-gb = 12, shared = true }'
    )
    assert load_needs_file(path) == (
        NeedRule("a*", Need(gpus=2)),
        NeedRule("b*", Need(gpus=1, min_capability=(8, 6))),
        NeedRule("t/", None, timeout_s=7200.0),
        NeedRule("*_big.py", Need(8, 80.0, "H100", (9, 0), True), timeout_s=9.0),
        NeedRule("s*", Need(gpus=1, memory_gb=12.0, shared=True)),
    )


def test_a_needs_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.toml: No such file"):
        load_needs_file(tmp_path / "gone.toml")


def rule(glob: str, gpus: int | None = None, timeout_s: float | None = None) -> NeedRule:
    return NeedRule(glob, None if gpus is None else Need(gpus=gpus), timeout_s)


@pytest.mark.parametrize(
    ("glob", "matched"),
    [
        ("tests/gpu/**", {"tests/gpu/a.py", "tests/gpu/deep/b.py"}),
        ("tests/gpu/", {"tests/gpu/a.py", "tests/gpu/deep/b.py"}),
        ("tests/*.py", {"tests/c.py"}),
        ("**/a.py", {"a.py", "tests/gpu/a.py"}),
        ("a.py", {"a.py", "tests/gpu/a.py"}),
        ("/a.py", {"a.py"}),
        ("[bc].py", {"tests/gpu/deep/b.py", "tests/c.py"}),
    ],
)
def test_patterns_are_those_of_gitignore(glob: str, matched: set[str]) -> None:
    table = NeedsTable([rule(glob, gpus=1)])
    paths = {"a.py", "tests/gpu/a.py", "tests/gpu/deep/b.py", "tests/c.py"}
    assert {path for path in paths if table.need(path)} == matched


def test_a_need_of_nothing_wins_over_markers() -> None:
    assert NeedsTable([rule("*", gpus=0)]).need("a.py") == Need()
    assert NeedsTable([rule("*", timeout_s=5.0)]).need("a.py") is None


rules = st.lists(
    st.builds(
        rule,
        st.sampled_from(["*", "a/", "a/b.py", "c*", "**/d.py"]),
        st.none() | st.integers(0, 8),
        st.none() | st.floats(1, 9),
    )
)


@given(rules, st.sampled_from(["a/b.py", "c.py", "a/d.py", "d.py", "e.py"]))
def test_the_last_match_wins_for_need_and_timeout_by_itself(given_rules: list[NeedRule], path: str) -> None:
    table = NeedsTable(given_rules)
    matching = [each for each in given_rules if not NeedsTable([each]).idle([path])]
    needs = [each.need for each in matching if each.need is not None]
    timeouts_s = [each.timeout_s for each in matching if each.timeout_s is not None]
    assert table.need(path) == (needs[-1] if needs else None)
    assert table.timeout_s(path) == (timeouts_s[-1] if timeouts_s else None)


def test_patterns_that_match_nothing_are_named() -> None:
    table = NeedsTable([rule("tests/*", 1), rule("test/*", 1)])
    assert table.idle(["tests/a.py"]) == ["test/*"]


def test_a_file_that_a_parser_would_read_for_minutes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("#" * (MAX_SETTINGS_BYTES + 1))
    with pytest.raises(UsageError, match="it has more than 1,048,576 bytes"):
        load_config(tmp_path)


def test_toml_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("a = " + "[" * 50_000)
    with pytest.raises(UsageError, match=r"pyproject\.toml is not valid TOML"):
        load_config(tmp_path)
