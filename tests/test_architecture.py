"""The rules of the house that no tool holds: who owns which side effect, and what a command imports.

Every file against every rule, then every rule against a planted breach.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture_owners import ENVIRONMENT, OWNED, SUPERVISOR
from tests.architecture_rules import Owned, Source, absent, house, trespasses, unexplained_excepts

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    *("torch", "numpy", "ray", "pydantic", "yaml", "rich", "pynvml", "psutil", "sqlite3", "asyncio"),
    *("pytest", "jinja2"),
)


SOURCES = house(ROOT)


# ---------------------------------------------------------------------------------------------- the house keeps them


@pytest.mark.parametrize("rule", OWNED, ids=lambda rule: f"{rule.within.strip('/')}-{rule.names[0]}")
def test_only_owners_use_what_they_own(rule: Owned) -> None:
    assert [line for source in SOURCES for line in trespasses(source, rule)] == []


def test_paths_in_the_tables_exist() -> None:
    tables = (*SUPERVISOR, *ENVIRONMENT)
    named = {*tables, *(path for rule in OWNED for path in rule.owners)}
    assert absent(named, (source.path for source in SOURCES)) == set()
    assert [rule.within for rule in OWNED if not any(source.path.startswith(rule.within) for source in SOURCES)] == []


def test_catching_everything_has_a_reason() -> None:
    assert [line for source in SOURCES for line in unexplained_excepts(source)] == []


def test_the_command_line_is_light() -> None:
    code = f"import harness.cli.main, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_program_starts_before_what_reports_on_it_is_imported() -> None:
    names = ("pydantic", "yaml", "harness.render.recording", "harness.lab.replay.replay")
    code = "import harness.cli.trace, harness.lab.experiment.single_run, sys"
    code += f"; print([m for m in {names!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_run_of_tests_imports_nothing_of_the_lab() -> None:
    code = "import harness.cli.run, harness.runner.run, harness.render.run_reporters, sys"
    code += "; print([m for m in sys.modules if m.startswith('harness.lab')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# ------------------------------------------------------------------------------------------- each rule finds a breach


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("harness/runner/run.py", "from ..machine import gpus\nimport time"),
        ("harness/runner/run.py", "from time import monotonic as now"),
        ("harness/runner/run.py", "import datetime as d\nd.datetime.now()"),
        ("harness/runner/run.py", "from datetime import datetime\ndatetime.now(tz=None)"),
        ("harness/process/child_env.py", "import os\nos.environ['A'] = 'b'"),
        ("harness/process/child_env.py", "from os import environ as e"),
        ("harness/process/child_env.py", "import os\nos.getenv('A')"),
        ("harness/runner/run.py", "import os as o\no.killpg(1, 9)"),
        ("harness/runner/run.py", "def f(process):\n    process.kill()"),
        ("harness/runner/run.py", "def f(process):\n    process.send_signal(9)"),
        ("harness/cli/main.py", "import sys\nsys.exit(1)"),
        ("harness/recording/operations.py", "import torch\ntorch.cuda.is_available()"),
        ("harness/cli/main.py", "raise SystemExit(1)"),
        ("harness/runner/run.py", "def f(path):\n    with open(path) as file: pass"),
        ("harness/runner/run.py", "def f(path):\n    path.read_text('utf-8')"),
        ("rlcore/models/tokenizer.py", "def f(path):\n    path.read_bytes()"),
        ("rlcore/models/tokenizer.py", "from tokenizers import Tokenizer\nTokenizer.from_file('a')"),
        ("rlcore/models/tokenizer.py", "import json\njson.loads('1')"),
        ("rlcore/models/build.py", "from safetensors import safe_open\nsafe_open('a')"),
    ],
)
def test_a_trespass_is_found(path: str, code: str) -> None:
    assert [line for rule in OWNED for line in trespasses(Source(path, code), rule)]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("harness/process/clock.py", "import time\ntime.monotonic()"),
        ("harness/process/supervisor/main.py", "import os\nos.killpg(1, 9)"),
        ("harness/runner/run.py", "import os\nimport datetime\nos.getpid()\ndatetime.timedelta(1)"),
        ("harness/runner/run.py", "def f(supervisors):\n    supervisors.kill('marker')"),
        ("tests/runner/test_run.py", "import time, torch, os\nos.environ"),
    ],
)
def test_an_owner_is_left_alone(path: str, code: str) -> None:
    assert [line for rule in OWNED for line in trespasses(Source(path, code), rule)] == []


def test_absent_paths_are_found() -> None:
    paths = ("harness/a.py", "harness/b/c.py")
    assert absent(("harness/a.py", "harness/b/", "harness/b/c.py"), paths) == set()
    named = {"harness/a", "harness/b", "harness/d/", "harness/launch_ray.py"}
    assert absent(named, paths) == named


def test_relative_imports_are_resolved() -> None:
    code = "from . import gate\nfrom ..machine.gpus import read\nfrom ... import rlcore"
    origins = [origin for _, origin in Source("harness/lab/replay.py", code).facts.imports]
    assert origins == ["harness.lab.gate", "harness.machine.gpus.read", ".rlcore"]


def test_unexplained_excepts_are_found() -> None:
    catch = "try: f()\n{}: pass\n"
    for line in ("except", "except Exception", "except (OSError, BaseException) as e"):
        assert len(unexplained_excepts(Source("harness/a.py", catch.format(line)))) == 1
    for line in ("except OSError", "except Exception:  # a plugin's own error\n    f()\nelse", "except: raise\nelse"):
        assert unexplained_excepts(Source("harness/a.py", catch.format(line))) == []
