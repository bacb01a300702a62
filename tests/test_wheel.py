"""The wheel holds what users import and what that reads: no tests, no test doubles, no stray files."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from email import message_from_string
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest

from tests.architecture_rules import Source

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("harness", "rlcore", "scenarios")
PAGES = {"harness/trace/FORMAT.md"}
"""Pages that the package's own errors send a reader to."""
UNREAD = {"py.typed", "LICENSE", "vectors.json"}
"""Data files for others than our code: type checkers, lawyers, writers of traces in other languages."""
SCHEMAS = "harness/schemas"
"""JSON schemas for editors, which `rlharness schema` writes."""
EXAMPLE = "harness/lab/demo/project/"
"""Files that `rlharness demo` copies for a user: a suite and a program, with planted faults."""
ENTRY = "_rlharness_pytest.py"
"""At the top level, where its name is its own."""
_EXAMPLE_FILES = re.compile(r"pyproject\.toml|train\.py|tests/test_\w+\.py")
_METADATA = re.compile(r"rlharness-[^/]+\.dist-info/")
_OF_TESTS = re.compile(r"(^|/)(conftest|(fake|mock|stub|dummy|scripted)_\w+)\.py$")
_TEST = re.compile(r"^(?:async )?def (test_\w+)\([^)]*\)(?: -> None)?:", re.MULTILINE)
_DOUBLE = re.compile(r"^class ((?:Fake|Mock|Stub|Dummy|Scripted)[A-Z]\w*)", re.MULTILINE)


def build(root: Path, directory: Path) -> Path:
    """The wheel of the project in `root`, built as pip builds it; nothing is downloaded."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


def read(wheel: Path) -> dict[str, str]:
    """The text of each of its files, by path."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode("utf-8", errors="replace") for name in archive.namelist()}


def entry_points() -> set[str]:
    """Modules that pyproject.toml names as commands, and as a plugin of pytest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    targets = (project["scripts"], project["entry-points"]["pytest11"])
    return {target.partition(":")[0] for each in targets for target in each.values()}


def strays(files: Mapping[str, str]) -> dict[str, str]:
    """Path -> why it does not belong in the wheel."""
    sources = [Source(path, text) for path, text in files.items() if path.endswith(".py")]
    found = {}
    for path in files:
        if not _METADATA.match(path) and (reason := _reason(path, files, sources)):
            found[path] = reason
    return found


def _reason(path: str, files: Mapping[str, str], sources: list[Source]) -> str:
    top, _, below = path.partition("/")
    if top not in (*PACKAGES, ENTRY):
        return "lies outside the packages"
    if top == "scenarios":
        return "" if below == "__init__.py" or re.fullmatch(r"\w+\.yaml", below) else "is no scenario"
    if path.startswith(EXAMPLE):
        return "" if _EXAMPLE_FILES.fullmatch(path.removeprefix(EXAMPLE)) else "is no file of the example project"
    if not path.endswith(".py"):
        return "" if _is_data(path, files, sources) else "is read by no module"
    if _OF_TESTS.search(path):
        return "is named as files of tests are"
    if double := _DOUBLE.search(files[path]):
        return f"holds {double[1]}, a test double"
    if test := _TEST.search(files[path]):
        return f"holds {test[1]}, a test"
    return "" if top == "rlcore" or _is_used(path, sources) else "is used by no other module"


def _is_data(path: str, files: Mapping[str, str], sources: list[Source]) -> bool:
    """Whether it is for others, or a module of its folder or above names it, or a file of its own kind includes it."""
    name, folder = PurePosixPath(path).name, PurePosixPath(path).parent
    if path in PAGES or name in UNREAD or (str(folder) == SCHEMAS and name.endswith(".json")):
        return True
    near = [
        text
        for other, text in files.items()
        if other != path and PurePosixPath(other).parent in (folder, folder.parent)
    ]
    return any(re.search(rf"[\"'/]{re.escape(name)}[\"']", text) for text in near)


def _is_used(path: str, sources: list[Source]) -> bool:
    """Whether another module imports it, or names it or its file in a string; sitecustomize is imported by Python."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    stem = PurePosixPath(path).stem
    named = re.compile(rf"\"{stem}(\.py)?\"|\"{re.escape(module)}[\":]|from {re.escape(module)} import")
    return (
        stem == "sitecustomize"
        or module in entry_points()
        or any(
            named.search(source.text) or any(_is_or_below(origin, module) for _, origin in source.facts.imports)
            for source in sources
            if source.path != path
        )
    )


def _is_or_below(origin: str, module: str) -> bool:
    return origin == module or origin.startswith(f"{module}.")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.mark.full
def test_nothing_in_it_is_astray(wheel: Path) -> None:
    assert strays(read(wheel)) == {}


def test_all_of_the_packages_but_their_pages_is_in_it(wheel: Path) -> None:
    kept = [path.relative_to(ROOT).as_posix() for top in PACKAGES for path in (ROOT / top).rglob("*") if path.is_file()]
    wanted = {path for path in kept if "__pycache__" not in path and (not path.endswith(".md") or path in PAGES)}
    wanted ^= {"harness/recording/pytest_entry.py", ENTRY}
    assert {path for path in read(wheel) if not _METADATA.match(path)} == wanted
    assert {PurePosixPath(path).suffix for path in wanted} >= {".css", ".html", ".json", ".yaml"}


def test_what_was_unpacked_works(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "cwd").mkdir()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import harness, sys\n"
        "from harness.__main__ import run\n"
        "print(harness.__file__)\n"
        "sys.argv = ['rlharness', 'scenarios']\n"
        "run()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path / "cwd", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))
    for path in (ROOT / "scenarios").glob("*.yaml"):
        assert path.stem in done.stdout


def metadata_of(wheel: Path) -> Message:
    (text,) = [text for path, text in read(wheel).items() if path.endswith(".dist-info/METADATA")]
    return message_from_string(text)


def test_its_description_has_no_relative_link(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Description-Content-Type"] == "text/markdown"
    description = str(metadata.get_payload())
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)", description)
    home = metadata_urls(metadata)["Repository"]
    assert len(links) > 20
    assert [target for _, target in links if not target.startswith(("https://", "#"))] == []
    raw = home.replace("https://github.com/", "https://raw.githubusercontent.com/")
    pictures = [target for mark, target in links if mark]
    pages = [target for mark, target in links if not mark and target.startswith(home)]
    assert pictures and pages
    for target in pictures:
        assert (ROOT / target.removeprefix(f"{raw}/main/")).is_file(), target
    for target in pages:
        assert (ROOT / target.removeprefix(f"{home}/blob/main/").partition("#")[0]).exists(), target


def test_its_metadata_names_a_home(wheel: Path) -> None:
    urls = metadata_urls(metadata_of(wheel))
    assert urls.keys() == {"Documentation", "Repository", "Changelog", "Issues"}
    assert all(url.startswith("https://") for url in urls.values())
    assert metadata_of(wheel)["Author"] == "The rlharness authors"


def metadata_urls(metadata: Message) -> dict[str, str]:
    """The project's addresses by their labels."""
    return dict(str(each).split(", ") for each in metadata.get_all("Project-URL", []))


# ------------------------------------------------------------------------------------------- each rule finds a breach


PLANTED = {
    "harness/notes.txt": "is read by no module",
    "harness/runner/test_order.py": "holds test_order, a test",
    "harness/lab/demo/project/tests/conftest.py": "is no file of the example project",
    "harness/runner/conftest.py": "is named as files of tests are",
    "harness/runner/fake_clock.py": "is named as files of tests are",
    "harness/runner/left_over.py": "is used by no other module",
    "rlcore/stub.c": "is read by no module",
    "scenarios/nvml_stub/build.py": "is no scenario",
    "scenarios/program.py": "is no scenario",
}


@pytest.mark.full
def test_planted_files_are_found(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy / name)
    for top in PACKAGES:
        shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PLANTED:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        text = "def test_order() -> None:\n    assert True\n" if "test_order" in name else "x = 1\n"
        (copy / name).write_text(text, encoding="utf-8")
    main = copy / "harness" / "__main__.py"
    main.write_text(main.read_text("utf-8") + "\n\nclass FakeClock:\n    pass\n", encoding="utf-8")

    found = strays(read(build(copy, tmp_path / "out")))

    assert found == PLANTED | {"harness/__main__.py": "holds FakeClock, a test double"}
    assert strays({"tests/support/fake_clock.py": ""}) == {"tests/support/fake_clock.py": "lies outside the packages"}
