"""Which files the plan has to import, by their text; and the digest follows every text that decides their tests."""

import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runner.collection.source_scan import SourceScan

PLAIN = "def test_a(): pass\n"
MARKED = "import pytest\nbig = pytest.mark.gpus(8)\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def why(root: Path, source: str, *applied: str) -> str:
    write(root, {"test_it.py": source})
    return SourceScan(root, [str(root)]).of_file(root / "test_it.py", [root / each for each in applied]).why_import


def digest(root: Path, *applied: str, fixed: bytes = b"") -> str:
    scan = SourceScan(root, [str(root)], fixed)
    return scan.of_file(root / "test_it.py", [root / each for each in applied]).digest


MARKERS = [
    "import pytest\n@pytest.mark.gpus(2)\ndef test_a(): pass",
    "from pytest import mark\npytestmark = [mark.slow, mark.gpus(N + 1)]",
    "import pytest\nclass TestA:\n    pytestmark = pytest.mark.gpus(1)",
    "import pytest\n@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.gpus(2))])\ndef test_a(n): pass",
    "import pytest\nbig = getattr(pytest.mark, 'gpus')(8)",
    "def test_a(request): request.node.add_marker('gpus')",
]


@pytest.mark.parametrize("source", MARKERS, ids=range(len(MARKERS)))
def test_a_file_that_mentions_the_marker_is_imported(tmp_path: Path, source: str) -> None:
    assert why(tmp_path, source) == "it mentions gpus"


@pytest.mark.parametrize(
    "source",
    ["import pytest\nnum_gpus = 8", "gpus = 8", "import pytest\n# gpus_per_node", "# pytest: run('--gpus', '2')"],
)
def test_a_name_that_only_looks_like_the_marker_is_no_reason(tmp_path: Path, source: str) -> None:
    assert why(tmp_path, f"{source}\n{PLAIN}") == ""


@pytest.mark.parametrize(
    "line",
    [
        "from marks import big",
        "from marks import *",
        "import os, marks as m",
        "import deep.down.marks",
        "from deep.down import marks",
        "from deep.down import (  # which one\n    other,\n    marks,\n)",
        "from deep.down \\\n    import marks",
        "from deep.down.marks import big",
        "from .marks import big",
        "from . import marks",
        "from through import big",
        "if True:\n    import through",
    ],
)
def test_a_file_that_imports_a_module_with_the_marker_is_imported(tmp_path: Path, line: str) -> None:
    write(tmp_path, {"marks.py": MARKED, "deep/down/marks.py": MARKED, "through.py": "import again\nimport marks"})
    write(tmp_path, {"again.py": "import through", "deep/down/other.py": ""})
    found = why(tmp_path, f"{line}\n{PLAIN}")
    assert found in ("marks.py mentions gpus", "deep/down/marks.py mentions gpus")


def test_the_package_of_a_test_file_counts_as_imported(tmp_path: Path) -> None:
    write(tmp_path, {"tests/__init__.py": MARKED, "tests/test_a.py": PLAIN})
    scanned = SourceScan(tmp_path, []).of_file(tmp_path / "tests" / "test_a.py")
    assert scanned.why_import == "tests/__init__.py mentions gpus"


def test_conftest_files_and_what_they_import_count(tmp_path: Path) -> None:
    write(tmp_path, {"conftest.py": "from marks import big", "marks.py": MARKED})
    assert why(tmp_path, PLAIN) == ""
    assert why(tmp_path, PLAIN, "conftest.py") == "marks.py mentions gpus"


def test_installed_modules_are_not_the_suite_s(tmp_path: Path) -> None:
    root = tmp_path / "lib" / "site-packages" / "suite"
    write(root.parent, {"installed.py": MARKED, "suite/__init__.py": "", "suite/own.py": MARKED})
    assert why(root, f"import installed\n{PLAIN}") == ""
    assert why(root, f"import suite.own\n{PLAIN}") == "own.py mentions gpus", "a suite may itself be installed"
    venv = tmp_path / "checkout"
    write(venv, {".venv/site-packages/installed.py": MARKED, "test_it.py": f"import installed\n{PLAIN}"})
    scan = SourceScan(venv, [str(venv / ".venv" / "site-packages")])
    assert scan.of_file(venv / "test_it.py").why_import == "no module installed is found"


FAULTS = {
    "import no_such_module": "no module no_such_module is found",
    "from no_such_module.sub import a": "no module no_such_module is found",
    "import beside, os, pytest, click.nothing": "",
    "from . import no_such_module": "",
    "try:\n    import no_such_module\nexcept ImportError: pass": "",
    "import pytest\npytest.importorskip('x')\nimport no_such_module": "",
    "def test_a(): import no_such_module": "",
    "import pytest\n@pytest.mark.timeout('soon')\ndef test_a(): pass": "it has a timeout marker that is not a number",
    "from pytest import mark\n@mark.timeout(timeout='x')\ndef test_a(): pass": (
        "it has a timeout marker that is not a number"
    ),
    "import pytest\n@pytest.mark.timeout(0)\ndef test_a(): pass": "",
    "import pytest\n@pytest.mark.timeout(LIMIT)\ndef test_a(): pass": "",
    "def test_a(:": "it cannot be read: invalid syntax (<unknown>, line 1)",
}


@pytest.mark.parametrize(("source", "said"), FAULTS.items(), ids=range(len(FAULTS)))
def test_a_file_whose_import_visibly_fails_is_imported(tmp_path: Path, source: str, said: str) -> None:
    write(tmp_path, {"beside.py": ""})
    assert why(tmp_path, source) == said


@pytest.mark.parametrize("source", [b"def test_a(): pass\0", b"X = " + b"-" * 20_000 + b"1", b"\xff\xfe"])
def test_a_file_that_python_cannot_parse_is_imported(tmp_path: Path, source: bytes) -> None:
    (tmp_path / "test_it.py").write_bytes(source)
    assert SourceScan(tmp_path, []).of_file(tmp_path / "test_it.py").why_import.startswith("it cannot be read: ")


def test_a_file_that_is_not_there_may_say_anything(tmp_path: Path) -> None:
    assert SourceScan(tmp_path, []).of_file(tmp_path / "test_gone.py").why_import == "it mentions gpus"


TEXTS = {"test_it.py": "import own\n", "own.py": "import deep\n", "deep.py": "", "conftest.py": "", "other.py": ""}


@given(changed=st.sampled_from(sorted(TEXTS)), added=st.text("# abc", min_size=1))
def test_the_digest_follows_every_text_that_the_tests_depend_on_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, changed: str, added: str
) -> None:
    root = tmp_path_factory.mktemp("suite")
    write(root, TEXTS)
    before = digest(root, "conftest.py")
    assert digest(root, "conftest.py") == before
    assert digest(root, "conftest.py", fixed=b"another pytest") != before
    (root / changed).write_text(TEXTS[changed] + f"#{added}\n")
    assert (digest(root, "conftest.py") == before) is (changed == "other.py")
