"""The tests of vLLM pass in an environment of its own, which has versions that this one cannot have."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
VARIABLE = "RLHARNESS_VLLM_PYTHON"
TESTS = ("tests/conformance/test_vllm_sampler_conformance.py", "tests/rlcore/samplers/vllm")


@pytest.mark.full
@pytest.mark.timeout(1500)
def test_the_tests_of_vllm_pass_with_vllm() -> None:
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(
            f"{VARIABLE} names no Python with vLLM: "
            "python tests/rlcore/peers/environments.py makes one, and runs these tests"
        )
    command = [python, "-m", "pytest", "-m", "", "-p", "no:cacheprovider", "-q", *TESTS]
    # A run of this repository's tests loads no plugins but its own; those of vLLM need pytest-xdist and pytest-timeout.
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 100
    assert " skipped" not in done.stdout, "vLLM is not there"
