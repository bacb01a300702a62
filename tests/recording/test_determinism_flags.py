"""What level deterministic switches on in a process, by its effect, and that without it there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli_commands import type_command
from tests.support.suite_runs import environment

pytest.importorskip("torch")

PROGRAM = """
import json, random, sys, warnings
import torch
from harness.recording.determinism import set_flags

level = sys.argv[1]
without_effect = set_flags(level)
torch.set_num_threads(2)
first = torch.rand(1).item(), random.random()
generator = torch.Generator().manual_seed(1)
indices = torch.randint(0, 8, (3_000_000,), generator=generator)
values = torch.randn(3_000_000, generator=generator)
sums = {tuple(torch.zeros(8).index_put_((indices,), values, accumulate=True).tolist()) for _ in range(30)}
print(json.dumps({"without_effect": without_effect, "first": first, "sums": len(sums)}))
"""


def told(level: str) -> dict[str, object]:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, level]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    fields: dict[str, object] = json.loads(done.stdout)
    return fields


@pytest.mark.full
def test_off_switches_nothing_on() -> None:
    a, b = told("off"), told("off")
    assert a["first"] != b["first"]
    assert isinstance(a["sums"], int)
    assert a["sums"] > 1, "atomic additions of two threads agreed 30 times"


@pytest.mark.full
def test_rerun_takes_effect() -> None:
    a, b = told("deterministic"), told("deterministic")
    assert a == b
    assert (a["without_effect"], a["sums"]) == ([], 1)


def test_a_program_with_numpy_alone_is_given_no_torch() -> None:
    code = "import sys, harness.recording.boot_hooks; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.full
def test_a_switch_that_took_no_effect_is_named() -> None:
    undone = PROGRAM.replace(
        "set_flags(level)",
        "(set_flags(level), torch.use_deterministic_algorithms(False), determinism.without_effect())[2]",
    ).replace("import torch\n", "import torch\nfrom harness.recording import determinism\n", 1)
    undone = undone.replace("range(30)", "range(1)")
    command = [sys.executable, "-W", "ignore", "-c", undone, "deterministic"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["without_effect"] == ["torch.set_deterministic_debug_mode"]


@pytest.mark.full
@pytest.mark.parametrize(
    "imports", [pytest.param("import torch, numpy", marks=pytest.mark.full), "import numpy, torch"]
)
def test_numpy_is_seeded_whichever_comes_first(tmp_path: Path, imports: str) -> None:
    pytest.importorskip("numpy")
    code = f"{imports}; print(numpy.linalg.norm([3, 4]), numpy.random.rand())"
    done = type_command(tmp_path, "trace", "--level", "deterministic", "--out", "t", "--", sys.executable, "-c", code)
    assert done.stdout == "5.0 0.5488135039273248\n", done.stderr  # what numpy.random.seed(0) gives, for good
