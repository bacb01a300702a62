"""What the documents say is what the code does: commands, options, exit codes, tables, the map of the house."""

import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from harness import __version__
from harness.bits.exit_codes import ExitCode
from harness.cli.main import cli
from harness.fixtures.ranks import start_ranks
from harness.fixtures.ray_nodes import start_ray_cluster
from harness.lab.experiment.plain_yaml import read_yaml
from harness.lab.experiment.scenario import Scenario, parse_scenario
from harness.machine.inventory import Gpu
from harness.plugin import need_of_mark
from harness.process import child_env
from harness.process.supervisor.containment import BACKENDS
from harness.runner.config import Keys, load_config
from harness.runner.need import Need
from harness.runner.units import Outcome
from tests.support.cli_commands import type_command
from tests.support.manual import README, pages, section, section_of, text, tracked
from tests.support.prose import long_sentences

ROOT = README.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

SEE_IT_WORK = "pip install -c constraints.txt -e '.[engine]' && rlharness demo"
WORK_ON_IT = "pip install -c constraints.txt -e '.[dev]' && rlharness run"


def documents() -> list[Path]:
    return [ROOT / path for path in tracked() if path.endswith(".md") and (ROOT / path).exists()] or [
        ROOT / "README.md"
    ]


def table(text: str) -> dict[str, str]:
    """First column -> second, without the heads of the tables; backticks kept."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", text, re.MULTILINE)
    heads = re.findall(r"^\| (.+?) \| .+ \|\n\|---", text, re.MULTILINE)
    return {first: second for first, second in rows if first not in heads}


def fenced(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def long_options(command: click.Command) -> set[str]:
    options = [p for p in command.params if isinstance(p, click.Option)]
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


def commands_of(console: str) -> Iterator[list[str]]:
    """The words of every `rlharness` line that a console example types."""
    for line in re.findall(r"^\$ (.+)$", console, re.MULTILINE):
        for part in re.split(r"&&|;|\|", line):
            words = part.split()
            if words[:1] == ["rlharness"]:
                yield words[1:]


def unknown_words(words: list[str]) -> list[str]:
    """What of a typed command line the command line does not know."""
    name, *rest = words or [""]
    command = cli.commands.get(name)
    if command is None:
        return [] if name in ("--help", "--version") else [name]
    own = rest[: rest.index("--")] if "--" in rest else rest
    known = long_options(command) | {"--help", "-h"}
    return [word for word in own if word.startswith("-") and word.partition("=")[0] not in known]


# -------------------------------------------------------------------------------------------------------- the README


def test_the_two_commands_are_what_ci_and_packaging_provide() -> None:
    assert [line for text in fenced("console", section("Two commands")) for line in text.splitlines()] == [
        f"$ {SEE_IT_WORK}",
        f"$ {WORK_ON_IT}",
    ]
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    for part in WORK_ON_IT.split(" && "):
        assert re.sub("^pip install", r"pip install --quiet --disable-pip-version-check", part) in script
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert {"engine", "ray", "vllm", "dev"} <= extras.keys()
    assert "rlharness[asynchronous,browser,engine,parquet,plots,ray,tensorboard,tests]" in extras["dev"]
    assert not any(requirement.startswith("rlharness[") for requirement in extras["engine"])
    assert any(requirement.startswith("torch>") for requirement in extras["engine"]), "the demo's replay needs torch"
    assert PYPROJECT["project"]["scripts"] == {"rlharness": "harness.__main__:run", "rlcore": "rlcore.commands:main"}


def test_a_version_is_written_once() -> None:
    project = PYPROJECT["project"]
    requirements = [*project["dependencies"], *(r for rs in project["optional-dependencies"].values() for r in rs)]
    versioned = [re.split(r"[<>=!~]", r)[0] for r in requirements if re.search(r"[<>=!~]", r)]
    assert len(versioned) == len(set(versioned))
    pinned = re.findall(r"^([^#=\s]+)==", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    unpinned = {name.lower() for name in versioned} - {name.lower().replace("_", "-") for name in pinned}
    assert unpinned == {"vllm"}, "what CI installs is pinned; vllm it never installs"


def test_every_command_and_option_is_documented() -> None:
    sections = [page.read_text("utf-8").partition("## Options\n") for page in pages().values()]
    told = section("Commands") + "".join(options.partition("\n## ")[0] for _, _, options in sections)
    words = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", told))
    for name, command in cli.commands.items():
        assert f"`rlharness {name} " in section("Commands", README)
        assert long_options(command) - words == set()
    assert words - {"-k", "-USR"} <= set[str]().union(*map(long_options, cli.commands.values()))


def test_exit_codes_are_those_of_the_code() -> None:
    told = {int(code): text for code, text in table(section("Exit codes")).items()}
    assert told.keys() == {int(code) for code in ExitCode}
    for code in ExitCode:
        if code is not ExitCode.OK:
            words = code.name.replace("_ERROR", "").replace("_FAILED", "").lower().split("_")
            assert all(word in told[code].lower() for word in words), (code.name, told[code])


def test_outcomes_and_containments_are_those_of_the_code() -> None:
    assert list(table(section("Outcomes"))) == [f"`{outcome}`" for outcome in Outcome]
    assert list(table(section("How a process tree is ended"))) == [f"`{backend}`" for backend in BACKENDS]


def test_the_marker_is_what_the_plugin_takes() -> None:
    (spelled,) = [row for row in table(section("What a file needs")) if "mark.gpus" in row]
    names = set(re.findall(r"(\w+)=", spelled))
    assert names == set(Need.__dataclass_fields__) - {"gpus"}
    assert need_of_mark((2,), {"memory_gb": 40})["memory_gb"] == 40


def test_the_fixtures_are_those_of_the_code() -> None:
    told = [row.strip("`").replace("**init", "init") for row in table(section("Fixtures for distributed tests"))]
    for name, start in (("distributed", start_ranks), ("ray_cluster", start_ray_cluster)):
        parameters = list(inspect.signature(start).parameters.values())
        defaults = ["" if p.default is p.empty else f"={p.default}" for p in parameters]
        signature = ", ".join(p.name + default for p, default in zip(parameters, defaults, strict=True))
        assert f"{name}({signature})" in told
    assert {"free_port", "gpu_ids"} <= set(told)


def test_the_childs_environment_is_as_the_table_says() -> None:
    told = table(section("What a child is given"))
    assert told == table(child_env.__doc__ or "")
    names = {name for row in told for name in re.findall(r"`([A-Z_]+)`", row)}
    parent = {"HOME": "/home/a", "PATH": "/bin", "TMP": "/x", "TEMP": "/y", "LD_LIBRARY_PATH": ""} | dict.fromkeys(
        names, "p"
    )
    parent["TORCHINDUCTOR_CACHE_DIR"] = "as the user has it"
    gpus = (Gpu("GPU-1", 0, "A", 80.0, number=0),)
    pins = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    child = child_env.child_env(
        parent,
        gpus=gpus,
        tmpdir="/t",
        marker="m",
        master_port=20000,
        by_number=True,
        pins=pins,
        xdist=child_env.xdist_variables(0, 2, "run"),
    )
    assert {name for name in parent | child if parent.get(name) != child.get(name)} == names
    removed = {name for row, text in told.items() if text.startswith("removed") for name in re.findall(r"`(\w+)`", row)}
    assert names - child.keys() == removed


def test_the_configuration_example_is_accepted(tmp_path: Path) -> None:
    (example,) = fenced("toml", section("What a file needs"))
    (tmp_path / "pyproject.toml").write_text(example, encoding="utf-8")
    config = load_config(tmp_path)
    assert [rule.need.gpus if rule.need else None for rule in config.needs] == [1, 8, None]
    told = re.findall(
        r"`([a-z-]+)`", " ".join(row for row in table(section("What a file needs")) if "mark." not in row)
    )
    assert set(told) == {field.name.removesuffix("_s").replace("_", "-") for field in fields(Keys)}


def test_the_example_of_a_scenario_is_one_and_its_keys_are_told() -> None:
    (example,) = fenced("yaml", section("Scenarios"))
    assert parse_scenario(example, "README").payload("smoke", {})["num_steps"] == 3
    assert list(table(section("Scenarios"))) == [f"`{key}`" for key in Scenario.model_fields]


def test_the_scenarios_of_the_manual_are_those_that_the_command_lists() -> None:
    (shown,) = re.findall(r"<!-- output: scenarios -->\n```text\n(.*?)```", section("Scenarios"), re.DOTALL)
    done = type_command(ROOT, "scenarios")
    assert (done.code, done.stdout) == (0, shown)


def test_the_readme_leads_to_every_page_and_is_short() -> None:
    readme = README.read_text("utf-8")
    led_to = {ROOT / target for target in re.findall(r"\]\(([^)#]+\.md)\)", readme)}
    rooms = [path for path in documents() if path.relative_to(ROOT).parts[0] in ("harness", "rlcore")]
    assert {*rooms} <= led_to
    assert len(readme) < 11_800, "what is longer is a page of its own, in the room that it tells of"
    for title, page in pages().items():
        assert page.read_text("utf-8").startswith(f"# {title}\n"), page


def test_the_layout_is_the_top_level() -> None:
    paths = tracked()
    if not paths:
        pytest.skip("not a git checkout: what belongs to the repository cannot be told")
    top = {f"`{path.partition('/')[0]}/`" if "/" in path else f"`{path}`" for path in paths}
    assert set(table(section("Layout"))) == top


def test_the_citation_is_of_this_version_and_home() -> None:
    citation = read_yaml((ROOT / "CITATION.cff").read_text("utf-8"), "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys(), "what the format demands"
    project = PYPROJECT["project"]
    assert citation["version"] == __version__
    assert citation["license"] == project["license"]
    assert citation["repository-code"] == project["urls"]["Repository"]
    assert citation["authors"] == project["authors"]


# ------------------------------------------------------------------------------------------------------ all documents


def test_programs_in_the_manual_are_those_that_are_tested() -> None:
    shown = dict(re.findall(r"<!-- program: (\w+) -->\n```python\n(.*?)```", text(), re.DOTALL))
    files = {name: (ROOT / "tests" / "support" / "programs" / f"{name}.py").read_text("utf-8") for name in shown}
    assert shown
    assert {name: text.partition('"""\n\n')[2] for name, text in files.items()} == shown


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_are_real(path: Path) -> None:
    text = path.read_text("utf-8")
    for example in fenced("python", text):
        compile(example, str(path), "exec")
    assert [
        word for console in fenced("console", text) for words in commands_of(console) for word in unknown_words(words)
    ] == []
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (path.parent / target).exists(), f"{path} links to {target}"


MAX_WORDS = {
    "CHANGELOG.md": 1_200,
    "harness/DESIGN.md": 4_000,
    "rlcore/DESIGN.md": 4_000,
    "tests/benchmarks/README.md": 3_000,
}
MAX_WORDS_OF_ALL = 60_000


def test_the_pages_are_short() -> None:
    words = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").split()) for path in documents()}
    assert [name for name, limit in MAX_WORDS.items() if words[name] > limit] == []
    assert sum(words.values()) <= MAX_WORDS_OF_ALL


NUM_LONG = {"README.md": 7}
"""By page, how many sentences have more than `MAX_WORDS` words at most; 0 for the rest. Only lower these numbers."""


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_has_no_long_sentences(path: Path) -> None:
    name, page = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
    long = long_sentences(page)
    assert len(long) <= NUM_LONG.get(name, 0), "\n".join(long)


OUT_OF_PLACE = {
    "a package index": re.compile(r"\b(pypi\.org|files\.pythonhosted|--(extra-)?index-url|/simple\b)"),
    "a path of one machine": re.compile(r"(?<![\w.])/(home|root|Users|work|mnt|opt)/\w+"),
    "how the work is organised": re.compile(r"\b(issue \d+|(next|previous|earlier) session|sub-?agent|TODO|FIXME)\b"),
}
HOLDS_THE_WORDS = {"tests/test_docs.py"}
HARMLESS = re.compile(r"/home/a\b|/opt/(amazon|rocm)\b")


def installs_from_an_index(text: str) -> list[str]:
    """Requirements of this distribution, typed after `pip install`, that only a package index could serve."""
    lines = re.findall(r"pip install ([^`\n&]*)", text)
    words = [word for line in lines for word in re.findall(r"'[^']*'|\S+", line)]
    return [word for word in words if re.match(r"'?rlharness\b", word) and " @ git+https://" not in word]


def test_no_page_installs_from_an_index_that_does_not_have_it() -> None:
    texts = {path: path.read_text("utf-8") for path in documents() if path.name != "CHANGELOG.md"}
    assert {path: found for path, text in texts.items() if (found := installs_from_an_index(text))} == {}


def out_of_place(text: str) -> list[str]:
    """Each thing that does not belong in the repository, with what it is."""
    text = HARMLESS.sub("", text)
    return [f"{what}: {match[0]}" for what, pattern in OUT_OF_PLACE.items() for match in pattern.finditer(text)]


def test_nothing_of_one_machine_or_of_the_way_of_working_is_kept() -> None:
    kept = [path for path in tracked() if path not in HOLDS_THE_WORDS and (ROOT / path).is_file()]
    texts = {path: (ROOT / path).read_text("utf-8", errors="replace") for path in kept}
    assert {path: found for path, text in texts.items() if (found := out_of_place(text))} == {}


# ------------------------------------------------------------------------------------------- each check finds a breach


def test_what_is_out_of_place_is_found() -> None:
    assert len(out_of_place("see /home/somebody/x\npip --index-url https://pypi.org/simple\nas issue 2 says")) >= 4
    assert out_of_place("pytest-xdist #760, a Ray session, /tmp/x, /proc/self, tests/work/a.py") == []


def test_an_install_line_from_an_index_is_found() -> None:
    found = installs_from_an_index("$ pip install rlharness\n`pip install -U 'rlharness[engine]'`")
    assert found == ["rlharness", "'rlharness[engine]'"]
    home = "git+https://github.com/rlharness/rlharness"
    assert installs_from_an_index(f"pip install -e . && pip install 'rlharness[engine] @ {home}' -e .") == []


def test_unknown_commands_and_options_are_found() -> None:
    console = "$ rlharness run --gpus sim:4 --frobnicate=1 -- --lf\n12 passed\n$ rlharness frob && rlharness plan a"
    assert [unknown_words(words) for words in commands_of(console)] == [["--frobnicate=1"], ["frob"], []]


def test_tables_and_sections_are_read() -> None:
    text = "# T\n## A\n| x | y |\n|---|---|\n| `1` | a | b |\n### B\n| 2 | c |\n## C\n| 3 | d |\n"
    assert table(section_of(text, "A")) == {"`1`": "a | b", "2": "c"}
    assert table(section_of(text, "B")) == {"2": "c"}
