"""What the files of a project ask for, and what of it is asked for twice and not alike."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from harness.doctor.declared_ranges import Declared, clashes, project_root, read_declared
from harness.doctor.packages import check_declared
from tests.support.finding_checks import severities

ROOT = Path(__file__).parents[3]


def project(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def found(directory: Path) -> dict[str, str]:
    """Name -> "range in place; ..." of every clash; ! before what no version satisfies."""
    return {
        clash.name: "!" * clash.is_impossible + "; ".join(f"{each.range} in {each.where}" for each in clash.declared)
        for clash in clashes(read_declared(directory))
    }


def test_a_pin_in_one_file_outside_the_range_of_another(tmp_path: Path) -> None:
    project(
        tmp_path,
        pyproject__toml='[project]\ndependencies = ["torch>=2.4", "ray"]\n'
        '[project.optional-dependencies]\nvllm = ["vllm==0.8.4"]\n',
        requirements__txt="# pins\ntorch==2.3.1  # old\nray>=2.40\nvllm==0.8.4\n",
    )
    assert found(tmp_path) == {"torch": "!>=2.4 in pyproject.toml; ==2.3.1 in requirements.txt:2"}


def test_different_ranges_with_versions_in_common(tmp_path: Path) -> None:
    project(
        tmp_path,
        setup__py="install_requires = ['Tensor_Dict>=0.8,<=0.10', 'numpy']\n"
        "EXTRAS = {'vllm': ['tensordict<=0.9'.lower(), 'tensor-dict!=0.9']}\n"
        "setup(install_requires=install_requires, tests_require=['tensor.dict>=0.9'])\n",
    )
    assert found(tmp_path) == {
        "tensor-dict": "<=0.10,>=0.8 in setup.py install_requires; !=0.9 in setup.py [vllm]; "
        ">=0.9 in setup.py tests_require"
    }


def test_constraints_narrow_by_design_and_clash_only_where_they_pin_something_else(tmp_path: Path) -> None:
    project(tmp_path, pyproject__toml='[project]\ndependencies = ["torch>=2.4"]\n', constraints__txt="torch==2.13.0\n")
    assert found(tmp_path) == {}
    (tmp_path / "more.txt").write_text("torch==2.14.0\n")
    project(tmp_path, constraints__txt="torch>=2.13\n-r more.txt\n")
    assert found(tmp_path) == {}, "what a constraint includes is one"
    project(tmp_path, constraints__txt="torch==2.3.0\n")
    assert found(tmp_path) == {"torch": "!>=2.4 in pyproject.toml; ==2.3.0 in constraints.txt:1"}


def test_included_files_are_read_once_and_markers_of_other_machines_skipped(tmp_path: Path) -> None:
    project(
        tmp_path,
        requirements__txt="-r more.in\n--pre\n-e .\n./wheel.whl\nnumpy<2 ; python_version < '3'\n-c pins.in\n",
    )
    (tmp_path / "more.in").write_text("-r requirements.txt\nnumpy>=2\nray==2.50 --hash=sha256:abc\n")
    (tmp_path / "pins.in").write_text("ray==2.60\n")
    assert found(tmp_path) == {"ray": "!==2.50 in more.in:3; ==2.60 in pins.in:1"}


def test_setup_cfg_and_groups(tmp_path: Path) -> None:
    project(
        tmp_path,
        setup__cfg="[options]\ninstall_requires =\n    trl>=0.9\n    %(x)s\n[options.extras_require]\na = trl>=0.10\n",
        pyproject__toml='[dependency-groups]\ndev = ["trl>=0.11", {include-group = "x"}]\n',
    )
    assert found(tmp_path) == {"trl": ">=0.11 in pyproject.toml group dev; >=0.9 in setup.cfg; >=0.10 in setup.cfg [a]"}


@pytest.mark.parametrize("name", ["pyproject.toml", "setup.py", "setup.cfg", "requirements.txt"])
@pytest.mark.parametrize("text", ["", "[[[", "\x00\xff", "import (", "[project]\ndependencies = 3\n"])
def test_files_that_are_no_such_thing_declare_nothing(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="latin-1")
    assert read_declared(tmp_path) == []


@given(st.lists(st.sampled_from([">=1", "==1.5", "<2", "==2.0", "", "==1.*", "~=1.4"]), max_size=5), st.randoms())
def test_the_order_of_the_files_does_not_matter(ranges: list[str], random: object) -> None:
    declared = [Declared("a", SpecifierSet(text), f"file {number}") for number, text in enumerate(ranges) if text]
    forwards, backwards = clashes(declared), clashes(declared[::-1])
    assert [clash.is_impossible for clash in forwards] == [clash.is_impossible for clash in backwards]
    assert bool(forwards) is (len({each.range for each in declared}) > 1)


SPECS = [">=1", ">1.5", "<=1.5", "<2", "==1.5", "==2.0", "!=1.5", "==1.*", "~=1.4", "<1", "==1.5+cpu", ">=2.0"]
VERSIONS = ["0.5", "0.9", "1.0", "1.3", "1.4", "1.4.9", "1.5", "1.5.1", "1.6", "1.9.9", "2.0", "2.0.1", "3.0"]


RANGES = st.lists(st.sampled_from(SPECS), min_size=1, max_size=3)


@given(RANGES, RANGES)
def test_ranges_are_impossible_together_where_every_version_is_outside(first: list[str], second: list[str]) -> None:
    a, b = (SpecifierSet(",".join(specs).replace("+cpu", "")) for specs in (first, second))
    found = clashes([Declared("a", a, "here"), Declared("a", b, "there")])
    has_common = any(a.contains(version) and b.contains(version) for version in VERSIONS)
    assert [clash.is_impossible for clash in found if clash.is_impossible] == [True] * (not has_common)


def test_the_findings_say_where(tmp_path: Path) -> None:
    project(tmp_path, pyproject__toml='[project]\ndependencies = ["a>=2", "b>=1"]\n', requirements__txt="a==1\nb>=2\n")
    findings = check_declared(clashes(read_declared(tmp_path)))
    assert severities(findings) == {"a": "broken", "b": "warning"}
    assert findings[0].measured == "declared 2 times: >=2 in pyproject.toml; ==1 in requirements.txt:1"
    assert severities(check_declared([])) == {"declared ranges": "fine"}


def test_the_project_is_the_nearest_above(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "setup.py").touch()
    assert project_root(tmp_path / "a" / "b") == tmp_path


def test_this_repository_declares_nothing_twice() -> None:
    declared = read_declared(ROOT)
    assert {"pytest", "torch", "ray"} <= {each.name for each in declared}
    assert clashes(declared) == []
