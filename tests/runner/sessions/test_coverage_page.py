"""The page on coverage: its commands, typed in a project of several files, show the lines that no test has run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("coverage", reason="pip install -e '.[tests]'")

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "harness" / "runner" / "COVERAGE.md").read_text("utf-8")
FILES = {
    "conftest.py": "import pathlib, sys\nsys.path.insert(0, str(pathlib.Path(__file__).parent))\n",
    "shapes.py": (
        "def area(width, height):\n"
        "    if width < 0:\n"
        "        raise ValueError(width)\n"
        "    return width * height\n"
        "\n"
        "\n"
        "def volume(width, height, depth):\n"
        "    return area(width, height) * depth\n"
        "\n"
        "\n"
        "def perimeter(width, height):\n"
        "    return 2 * (width + height)\n"
    ),
    "tests/test_area.py": (
        "import pytest\n"
        "from shapes import area\n"
        "def test_negative():\n"
        "    with pytest.raises(ValueError):\n"
        "        area(-1, 3)\n"
    ),
    "tests/test_volume.py": (
        "import subprocess, sys\n"
        "def test_in_a_process_of_its_own():\n"
        "    code = 'import shapes; assert shapes.volume(1, 2, 3) == 6'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True)\n"
    ),
}


@pytest.mark.timeout(240)
def test_the_commands_of_the_page_measure_every_file_and_child_process(tmp_path: Path) -> None:
    ((name, text),) = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    for path, content in {**FILES, name: text}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content, encoding="utf-8")
    (console,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    (shown,) = re.findall(r"<!-- output -->\n```text\n(.*?)\n```", PAGE)
    commands = tmp_path / "commands.sh"
    commands.write_text(console.replace("$ ", "", 1).replace("\n$ ", "\n"), encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))}
    environ |= {"PATH": f"{Path(sys.executable).parent}:{environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-e", str(commands)], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 units: 2 passed" in done.stdout
    assert shown in done.stdout.splitlines()
    assert not list(tmp_path.glob(".coverage.*")), "all data files were combined"
