"""The page about switching from another runner: its tests exist, and its configurations lease what it says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "harness" / "runner" / "MIGRATION.md").read_text("utf-8")
FILES = {
    "flash-attention": {"tests/cute/test_flash_attn.py": 1, "tests/cute/test_mask_mod.py": 1},
    "cupy": {
        "tests/cupy_tests/cuda_tests/test_stream.py": 1,
        "tests/cupy_tests/cuda_tests/test_memory.py": 2,
        "tests/cupyx_tests/distributed_tests/test_comm.py": 2,
    },
    "axlearn": {
        "axlearn/common/flash_attention/gpu_attention_test.py": 1,
        "axlearn/common/flash_attention/gpu_decoding_test.py": 1,
        "axlearn/common/flash_attention/layer_test.py": 4,
        "axlearn/common/flash_attention/common_test.py": 0,
    },
}
"""Files that these repositories have, and the GPUs that each leases with the configuration of the page."""


def feature_rows() -> list[list[str]]:
    """Return the cells of the feature table, without its head."""
    text = PAGE.partition("<!-- features: begin -->\n")[2].partition("<!-- features: end -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_every_feature_of_ours_names_a_test_that_exists() -> None:
    rows = feature_rows()
    assert len(rows) > 15
    for row in rows:
        assert len(row) == 7, row
        named = re.findall(r"`(tests/[^`]+)`", row[6])
        assert bool(named) == (row[1] != "no"), f"{row[0]}: {row[1]}, tests {named}"
        assert [path for path in named if not (ROOT / path).is_file()] == []


@pytest.mark.full
@pytest.mark.parametrize("name", list(FILES))
def test_the_configuration_for_a_repository_leases_what_the_page_says(name: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        PAGE.partition(f"<!-- migration: {name} -->\n```toml\n")[2].partition("```")[0], "utf-8"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\npython_files = test_*.py *_test.py\n")
    for path in FILES[name]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("def test_one(): pass\n")
    command = [sys.executable, "-m", "harness", "plan", "--gpus", "sim:8", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=100)
    units = json.loads(done.stdout)["units"]
    assert {unit["path"]: len(unit["gpu_ids"]) for unit in units} == FILES[name]
