"""The page of tests/gpu: its tests and stages exist, its one command runs without a GPU, and each file has one need."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.facts_page import page_of, read_lines

ROOT = Path(__file__).resolve().parent.parent
GPU = ROOT / "tests" / "gpu"
PAGE = (GPU / "README.md").read_text("utf-8")
SCRIPT = (GPU / "settle.sh").read_text("utf-8")
STAGES = re.findall(r'^all="(.*)"$', SCRIPT, re.MULTILINE)[0].split()
OF_TWO_GPUS = "test_vllm_on_gpus.py"
"""Split by the runner itself: its tests of one and of two GPUs share an engine's set-up."""


def test_every_finding_has_a_test_or_a_stage_and_both_exist() -> None:
    findings = json.loads((GPU / "findings.json").read_text("utf-8"))
    assert f"lists {len(findings)} points" in PAGE
    for row in findings:
        assert row["tests"] or row["why there is none"], row
        for test in row["tests"]:
            path, name = test.split("::")
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), name
        assert set(row["stages"]) <= set(STAGES), row


def test_the_page_lists_the_stages_in_the_order_in_which_they_run() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == STAGES
    for stage in STAGES:
        assert re.search(rf"^{stage}_?\(\) \{{", SCRIPT, re.MULTILINE), stage


def needs_of(file: Path) -> set[int]:
    """Return the numbers of GPUs that the markers of a file ask for."""
    calls = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.gpus"]
    return {arg.value for call in marks for arg in call.args if isinstance(arg, ast.Constant)}  # type: ignore[misc]


def test_tests_of_one_gpu_and_of_two_are_in_files_of_their_own() -> None:
    needs = {file.name: needs_of(file) for file in sorted(GPU.glob("test_*.py"))}
    assert {name for name, found in needs.items() if len(found) != 1} <= {OF_TWO_GPUS}
    assert {1} in needs.values() and {2} in needs.values()


def settle(out: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": sys.executable, **settings}
    command = ["bash", str(GPU / "settle.sh"), str(out)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


@pytest.mark.full
def test_without_a_gpu_the_command_reports_what_it_could_not_do(tmp_path: Path) -> None:
    done = settle(tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    lines = read_lines(tmp_path / "facts.jsonl")
    commands = [line for line in lines if "command" in line]
    assert list(dict.fromkeys(line["stage"] for line in commands)) == STAGES
    assert {line["not_run"] for line in commands} == {"no CUDA device is visible"}
    page = page_of(lines, {})
    assert page.startswith("# GPU facts, 20")
    assert all(f"| {stage} | `" in page for stage in STAGES)


def test_an_unknown_stage_is_refused(tmp_path: Path) -> None:
    done = settle(tmp_path, STAGES="machine digests")
    assert done.returncode == 4
    assert "no stage digests; there are: machine runner" in done.stderr


@pytest.mark.full
def test_the_measurements_run_on_the_host(tmp_path: Path) -> None:
    """With small sizes; what they find there says nothing of a GPU but that the digests are right."""
    facts = tmp_path / "facts.jsonl"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GPU_FACTS": str(facts), "OMP_NUM_THREADS": "1"}
    for part in ("digest", "rows", "products", "step", "kill"):
        command = [sys.executable, str(GPU / "facts.py"), part, "--device", "cpu"]
        subprocess.run(command, env=env, check=True, capture_output=True, cwd=ROOT)
    found = {(line["part"], line["fact"]): line["value"] for line in read_lines(facts)}
    assert not [fact for fact in found if fact[1].endswith(": failed")]
    assert found["digest", "dtypes and layouts that differ from the reference"] == []
    assert all(value is True for (_, fact), value in found.items() if "words from" in fact)
    assert {part for part, _ in found} == {"digest", "rows", "products", "step", "kill"}


def test_a_page_quotes_results_and_the_end_of_each_output(tmp_path: Path) -> None:
    lines = [
        {"stage": "", "date": "2026-01-02T03:04:05Z", "commit": "abc", "device": "cuda", "has_gpu": 1},
        {"stage": "kill", "command": "kill", "exit_code": 124, "seconds": 400},
        {"part": "nvml", "fact": "GPU 0 name", "value": "NVIDIA H200"},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"stage": "cut sh'
    (tmp_path / "facts.jsonl").write_text(text)
    page = page_of(read_lines(tmp_path / "facts.jsonl"), {"kill": "one\ntwo | three\n\n"})
    assert "# GPU facts, 2026-01-02\n\nNVIDIA H200; commit abc; device cuda." in page
    assert "| kill | `kill` | exceeded its limit | 400 | `two / three` |" in page
