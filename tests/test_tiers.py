"""The two tiers of the suite: what the default one leaves out, what runs the full one, and the figures they print."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import settings

from tests.benchmarks.results import PAGE, line, rendered, rows, with_row
from tests.benchmarks.suite_time import MAX_FILE_S, MAX_S, Measured, result
from tests.support.slowest_files import seconds_by_file

pytest_plugins = ["pytester"]
ROOT = Path(__file__).resolve().parent.parent
INI = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
MARK = "pytest.mark.full"

WHOLLY_FULL = {
    "tests/fixtures/test_left_behind.py": "tests/fixtures/test_ranks.py, which uses them once",
    "tests/lab/bisect/test_bisect_command.py": "tests/lab/bisect/test_revision_search.py, whose runs are played",
    "tests/lab/chaos/test_command.py": "tests/lab/chaos/test_executor.py, tests/lab/test_refusals.py",
    "tests/lab/test_scenario_replay.py": "tests/lab/test_replay_comparison.py, tests/lab/test_scenario_spec.py",
    "tests/lab/test_sentinel_command.py": "tests/recording/test_sentinel.py, without a launcher",
    "tests/lab/test_stopping.py": "tests/lab/test_terminal_run.py, tests/recording/test_conditions.py",
    "tests/lab/reproduce/test_step_command.py": "tests/lab/reproduce/test_comparison.py, without a run",
    "tests/lab/gate/test_own_history.py": "tests/lab/gate/test_gate_command.py, on a smaller project",
    "tests/machine/doctor/test_bootstrap.py": "tests/machine/doctor/test_layers.py, without a namespace",
    "tests/machine/doctor/test_frozen_tmpdir.py": "tests/machine/doctor/test_resources.py, by pretence",
    "tests/machine/network/test_namespaces.py": "tests/machine/network/test_preflight.py, without a namespace",
    "tests/machine/network/test_real_libraries.py": (
        "tests/machine/network/test_interface_rules.py, whose rules it confirms"
    ),
    "tests/recording/test_compiled_steps.py": "tests/recording/test_closures.py, whose steps are not compiled",
    "tests/recording/test_open_recorder.py": "tests/recording/test_boot.py, whose program opens one too",
    "tests/render/test_pages_in_browser.py": (
        "tests/render/test_report_page.py, tests/render/test_run_page.py, without a browser"
    ),
    "tests/rlcore/peers/test_live_trl.py": "tests/rlcore/test_pins.py, against published numbers",
    "tests/rlcore/peers/test_live_verl.py": "tests/rlcore/test_pins.py, against published numbers",
    "tests/rlcore/peers/test_vllm_environment.py": "tests/rlcore/samplers/vllm/test_paged_attention.py, without vLLM",
    "tests/rlcore/test_engine_page.py": "tests/rlcore/training/test_steps.py, whose gradients are those of the paper",
    "tests/guards/test_faults_breach.py": "tests/guards/test_planted_faults.py, which runs none of them",
    "tests/runner/test_runner_cost.py": "a benchmark: none",
    "tests/lab/test_hostile_repository.py": "tests/lab/test_trust.py, tests/bits/test_replaced_file.py",
    "tests/fuzz/test_readers.py": "tests/trace/test_reader.py, tests/lab/test_trust.py",
    "tests/bits/redaction/test_linear.py": "tests/bits/redaction/test_redaction.py, with short words",
    "tests/bits/redaction/test_every_command.py": "tests/bits/redaction/test_redaction.py, word by word",
    "tests/runner/test_hostile_tests.py": "tests/runner/attempts/test_attempt_losses.py, one attempt at a time",
    "tests/test_misbehaving.py": "tests/runner/test_misbehaving_processes.py, tests/runner/test_run_ends.py",
    "tests/rlcore/samplers/vllm/test_vllm_commands.py": "tests/rlcore/distributed/test_restarts.py, without vLLM",
    "tests/rlcore/samplers/vllm/test_vllm_reload.py": "tests/rlcore/weights/test_arrivals.py, without vLLM",
    "tests/rlcore/samplers/vllm/test_vllm_server.py": "tests/rlcore/weights/test_arrivals.py, without vLLM",
    "tests/rlcore/deployments/test_deaths.py": "tests/rlcore/distributed/test_restarts.py, without a run",
    "tests/rlcore/deployments/test_deployments.py": "tests/rlcore/trainers/test_parallel_trainer.py, without a run",
    "tests/rlcore/asynchronous/test_recorded.py": "tests/rlcore/asynchronous/test_runs.py, without a recorder",
    "tests/rlcore/distributed/test_ray_cluster.py": "tests/rlcore/distributed/test_placement.py",
}
"""Files without a test in the default tier, each with what tests the same feature there."""


def collected_files() -> Iterator[Path]:
    """Yield the files that pytest collects."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "support" not in path.relative_to(ROOT).parts:
            yield path


def has_mark(node: ast.expr) -> bool:
    """Whether an expression is the mark, or a list that holds it."""
    parts = node.elts if isinstance(node, ast.List | ast.Tuple) else [node]
    return any(ast.unparse(part) == MARK for part in parts)


def is_wholly_full(text: str) -> bool:
    """Whether a file marks itself, or every one of its tests."""
    if MARK not in text:
        return False
    tree = ast.parse(text)
    marked = any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and has_mark(node.value)
        for node in tree.body
    )
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    return marked or (bool(tests) and all(any(map(has_mark, test.decorator_list)) for test in tests))


def test_the_files_that_the_default_tier_leaves_out_are_listed_with_their_substitutes() -> None:
    left_out = {
        path.relative_to(ROOT).as_posix() for path in collected_files() if is_wholly_full(path.read_text("utf-8"))
    }
    assert left_out == WHOLLY_FULL.keys()
    for file, substitutes in WHOLLY_FULL.items():
        for substitute in re.findall(r"tests/[\w/]+\.py", substitutes):
            assert (ROOT / substitute).is_file(), f"{file}: {substitute}"
            assert substitute not in left_out, f"{file}: {substitute} is not in the default tier"


def test_a_file_that_marks_every_test_is_seen() -> None:
    assert is_wholly_full(f"pytestmark = [pytest.mark.timeout(3), {MARK}]\ndef test_a(): pass\n")
    assert is_wholly_full(f"@{MARK}\ndef test_a(): pass\n")
    assert not is_wholly_full(f"@{MARK}\ndef test_a(): pass\ndef test_b(): pass\n")


def collected(*words: str) -> set[str]:
    """Node ids that pytest selects in one file under this repository's own configuration."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "xdist", "-p", "timeout", "--collect-only", "-q"]
    done = subprocess.run(
        [*command, *words, "tests/test_tiers.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {line for line in done.stdout.splitlines() if "::" in line}


@pytest.mark.full
def test_the_full_tier_has_this_test_and_the_default_tier_the_others() -> None:
    default, full = collected(), collected("-m", "")
    assert full - default == {
        "tests/test_tiers.py::test_the_full_tier_has_this_test_and_the_default_tier_the_others",
    }
    assert default


def test_both_tiers_are_configured_and_run() -> None:
    addopts = INI["addopts"]
    assert addopts[addopts.index("-m") + 1] == "not full"
    assert [mark.partition(":")[0] for mark in INI["markers"]] == ["full"]
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert re.findall(r"^rlharness run (.*) \|\| status=", script, re.MULTILINE) == [
        '--plain --cpu-units "$(($(nproc) + 1))" --junit "$scratch/junit.xml" ${is_full:+-m ""}'
    ]
    order = ["-m venv .venv\n", "\ntests/guards/run --quick\n", "\nrlharness demo ", "\nrlharness run "]
    assert sorted(order, key=script.index) == order, "the README's two commands, in a checkout with its environment"
    for first, args in (("1", ["-m", ""]), ("", [])):
        shell = f'is_full={first}; for each in ${{is_full:+-m ""}}; do echo "[$each]"; done'
        said = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout
        assert said == "".join(f"[{arg}]\n" for arg in args)
    assert commands_of("nightly.yml") == [".ci/run full"]
    assert commands_of("ci.yml") == [".ci/run"]
    assert workflow("nightly.yml")[True].keys() == {"schedule", "workflow_dispatch"}, "YAML reads `on` as true"


def test_the_default_tier_draws_fewer_examples(request: pytest.FixtureRequest) -> None:
    is_default = "not full" in request.config.option.markexpr
    assert settings().max_examples == (20 if is_default else 100)


def workflow(name: str) -> dict[Any, Any]:
    """A workflow of this repository."""
    found: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text("utf-8"))
    return found


def commands_of(name: str) -> list[str]:
    """Commands that the one job of a workflow types."""
    (job,) = workflow(name)["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


# --------------------------------------------------------------------------------------------------------- the figures


def report_of(nodeid: str, duration_s: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, "call", duration=duration_s)


def test_durations_are_added_by_file() -> None:
    reports = [report_of("a.py::test_x[b.py::1]", 1.0), report_of("b.py::test_x", 2.0), report_of("a.py::T::t", 4.0)]
    assert seconds_by_file([*reports, "a warning"]) == {"a.py": 5.0, "b.py": 2.0}


def test_the_slowest_files_are_printed_where_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_slow="import time\ndef test_a(): time.sleep(0.2)\n", test_fast="def test_a(): pass\n")
    plugin = ("-p", "tests.support.slowest_files")
    assert "= slowest" not in pytester.runpytest(*plugin).stdout.str()
    printed = pytester.runpytest(*plugin, "--slowest-files=1").stdout.str()
    measured = Measured("default", 1.0, 0, printed + "\n")
    assert re.search(r"=+ slowest 1 of 2 files =+", printed)
    assert [line.split()[2:] for line in measured.slowest] == [
        ["test_slow.py"],
        ["in", "all", "files,", "summed", "over", "workers"],
    ]
    assert 0.2 <= measured.max_file_s < 10.0
    assert measured.counts == "2 passed"
    assert measured.faults() == []


def printed_by_pytest(file_s: float) -> str:
    slowest = f"=== slowest 1 of 9 files ===\n   {file_s} s tests/test_a.py\n   9.0 s in all files\n"
    return f"{slowest}== 3 passed in 1.0s ==\n"


@pytest.mark.parametrize(
    ("measured", "faults"),
    [
        (Measured("default", MAX_S, 0, printed_by_pytest(MAX_FILE_S)), []),
        (Measured("full", MAX_S + 1, 0, printed_by_pytest(MAX_FILE_S + 1)), []),
        (
            Measured("default", MAX_S + 1, 1, printed_by_pytest(MAX_FILE_S + 1)),
            [
                "pytest exited with 1",
                "the default tier takes 361 s, more than 360",
                "tests/test_a.py takes 101 s, more than 100",
            ],
        ),
        (Measured("default", 1.0, 0, "== 3 passed in 1.0s ==\n"), ["pytest printed no slowest files"]),
    ],
)
def test_a_budget_that_is_exceeded_is_a_fault(measured: Measured, faults: list[str]) -> None:
    assert measured.faults() == faults


def test_the_page_of_measurements_has_the_rows_of_the_results() -> None:
    page, old = PAGE.read_text("utf-8"), rows()
    assert rendered(page, old) == page
    assert {row["verdict"] for row in old} == {"met", "missed", ""}
    assert all(row["note"] for row in old if row["verdict"] == "missed"), "a missed target has a reason"
    for tier in ("default", "full"):
        row = result(Measured(tier, MAX_S + 1, 0, printed_by_pytest(1.0)), 0.5)
        new = with_row(old, row)
        assert row in new and len(new) == len(old)
        assert line(row) in rendered(page, new)
    missed = result(Measured("default", MAX_S + 1, 0, printed_by_pytest(1.0)), 0.5)
    assert f"- suite_time, default tier: {missed['note']}\n" in rendered(page, with_row(old, missed))
    assert with_row(old, {**missed, "measured": "another tier"})[:-1] == old
