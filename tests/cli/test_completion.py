"""Completion in a shell: commands, scenarios of the package and of the project, files where no scenario matches."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "harness" / "cli" / "COMPLETION.md"
RLHARNESS = Path(sys.executable).with_name("rlharness")


def completed(directory: Path, *words: str) -> list[tuple[str, str]]:
    """(kind, value) of what click answers for the last word."""
    environ = {
        **os.environ,
        "_RLHARNESS_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["rlharness", *words]),
        "COMP_CWORD": str(len(words)),
    }
    code = "from harness.__main__ import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [(kind, value) for kind, _, value in (line.partition(",") for line in done.stdout.splitlines())]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with a scenario of its own, which cannot be parsed: only its name is asked for."""
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "grpo_mine.yaml").write_text("{", encoding="utf-8")
    return tmp_path


def test_commands_are_completed(tmp_path: Path) -> None:
    assert completed(tmp_path, "rep") == [("plain", "replay"), ("plain", "report"), ("plain", "reproduce")]


@pytest.mark.full
@pytest.mark.parametrize("command", ["train", "replay", "chaos", "gate", "bisect"])
def test_scenarios_of_the_package_and_of_the_project_are_completed(project: Path, command: str) -> None:
    own = ("mine", "products", "recommendation", "reverse_text", "reward_model", "sorting")
    names = [f"grpo_{each}" for each in own]
    assert completed(project, command, "grpo_") == [("plain", name) for name in names]


def test_a_name_that_a_shell_would_obey_is_not_completed(project: Path) -> None:
    for name in ("grpo_$(touch x)", "grpo_;touch x", "grpo_\nx", "grpo_\x1b[2J", "grpo_\u202e"):
        (project / "scenarios" / f"{name}.yaml").write_text("{", encoding="utf-8")
    names = [value for _, value in completed(project, "train", "grpo_")]
    assert "grpo_mine" in names
    assert all(value[5:].isidentifier() for value in names), names


def test_files_are_completed_where_no_scenario_matches(project: Path) -> None:
    assert completed(project, "train", "./my") == [("file", "./my")]


def test_no_scenario_is_read_and_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; from pathlib import Path; import harness.cli.main;"
        "from harness.cli.options import complete_scenario;"
        "assert complete_scenario(None, None, 'grpo_');"
        "print([name for name in ('pydantic', 'yaml', 'torch', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not RLHARNESS.is_file(), reason="rlharness is not installed beside this Python")
def test_the_script_of_the_page_completes_in_bash(project: Path) -> None:
    (line,) = re.findall(r"^\| bash \| `([^`]*)` \| in `~/.bashrc`: `([^`]*)` \|$", PAGE.read_text("utf-8"), re.M)
    write, load = line
    script = (
        f"{write}\n{load}\nCOMP_WORDS=(rlharness train grpo_s); COMP_CWORD=2\n"
        'compopt() { :; }\n_rlharness_completion rlharness\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-ec", script],
        cwd=project,
        env={"HOME": str(project), "PATH": f"{RLHARNESS.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "grpo_sorting\n", "")
