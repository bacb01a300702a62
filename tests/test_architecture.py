"""The rules of the house, held by every file: who may import whom, who owns which side effect, how large things grow.

Tables come first: what is owned by whom, and what is exempt with its reason. Then every file against every rule, then
every rule against a planted breach.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture_owners import CHILD_ROOMS, ENVIRONMENT, OWNED, SUPERVISOR
from tests.architecture_rules import (
    FIRST_PARTY,
    ROOMS,
    Owned,
    Source,
    absent,
    empty_packages,
    house,
    import_cycles,
    is_stub,
    is_vague,
    layer_of,
    module_name,
    third_party,
    trespasses,
    unexplained_excepts,
    upward_imports,
)

ROOT = Path(__file__).resolve().parent.parent
LAYERS = (
    ("harness.__main__",),
    ("harness.cli",),
    ("harness.render",),
    (
        "harness.lab.replay",
        "harness.lab.reproduce",
        "harness.lab.gate",
        "harness.lab.chaos",
        "harness.lab.bisect",
        "harness.lab.report",
        "harness.lab.demo",
    ),
    ("harness.lab.experiments", "harness.runner", "harness.doctor", "harness.fixtures"),
    ("harness.runner.attempts",),
    ("harness.runner.reruns",),
    ("harness.runner.collection",),
    ("harness.runner.sessions",),
    ("harness.runner.options",),
    ("harness.runner.records",),
    ("harness.runner.events", "harness.runner.outcomes", "harness.runner.selections"),
    ("harness.runner.isolation_notes", "harness.runner.units"),
    ("harness.runner.schedule", "harness.runner.gpu_memory"),
    ("harness.recording",),
    ("harness.trace",),
    ("harness.determinism", "harness.machine"),
    ("harness.process",),
    ("harness.core",),
    ("harness.plugin", "harness", "harness.lab"),
)
"""Packages of harness, from the top down: each imports itself and what stands in a row below its own, nothing else."""


HEAVY = (
    *("torch", "numpy", "ray", "pydantic", "yaml", "rich", "pynvml", "psutil", "sqlite3", "asyncio", "junitparser"),
    *("pytest", "jinja2"),
)


SOURCES = house(ROOT)


# ---------------------------------------------------------------------------------------------- the house keeps them


@pytest.mark.parametrize("rule", OWNED, ids=lambda rule: f"{rule.within.strip('/')}-{rule.names[0]}")
def test_only_owners_use_what_they_own(rule: Owned) -> None:
    assert [line for source in SOURCES for line in trespasses(source, rule)] == []


def test_packages_import_only_what_is_below_them() -> None:
    harness = [source for source in SOURCES if source.path.startswith("harness/")]
    assert [line for source in harness for line in upward_imports(source, LAYERS)] == []
    places = {layer_of(module_name(source.path), LAYERS)[1] for source in harness}
    assert places == {package for row in LAYERS for package in row}, "a package of the table that does not exist"


def test_no_files_import_each_other() -> None:
    assert import_cycles([source for source in SOURCES if source.path.startswith(("harness/", "rlcore/"))]) == []


def test_paths_in_the_tables_exist() -> None:
    tables = (*CHILD_ROOMS, *SUPERVISOR, *ENVIRONMENT)
    named = {*tables, *(path for rule in OWNED for path in rule.owners)}
    assert absent(named, (source.path for source in SOURCES)) == set()
    assert [rule.within for rule in OWNED if not any(source.path.startswith(rule.within) for source in SOURCES)] == []


def test_catching_everything_has_a_reason() -> None:
    assert [line for source in SOURCES for line in unexplained_excepts(source)] == []


def test_names_say_what_a_file_is() -> None:
    assert [source.path for source in SOURCES if is_vague(source.path)] == []


def test_no_room_is_a_stub() -> None:
    assert [source.path for source in SOURCES if is_stub(source) and "misbehaving/" not in source.path] == []
    paths = [p.relative_to(ROOT).as_posix() for room in ROOMS for p in (ROOT / room).rglob("*") if p.is_file()]
    assert empty_packages(path for path in paths if "__pycache__" not in path) == set()


def test_the_plugin_needs_nothing_but_pytest() -> None:
    (plugin,) = [source for source in SOURCES if source.path == "harness/plugin.py"]
    assert third_party(plugin) == {"pytest"}
    assert [origin for _, origin in plugin.facts.imports if origin.partition(".")[0] in FIRST_PARTY] == []


def test_the_command_line_is_light() -> None:
    code = f"import harness.cli.main, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_program_starts_before_what_reports_on_it_is_imported() -> None:
    names = ("pydantic", "yaml", "harness.render.stopping", "harness.lab.replay.comparison")
    code = f"import harness.cli.commands.trace, sys; print([m for m in {names!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_run_of_tests_imports_nothing_of_the_lab() -> None:
    code = "import harness.cli.commands.run, sys; print([m for m in sys.modules if m.startswith('harness.lab')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# ------------------------------------------------------------------------------------------- each rule finds a breach


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("rlcore/types.py", "import harness.core.clock"),
        ("rlcore/types.py", "def f():\n    import scenarios"),
        ("rlcore/config.py", "import torch"),
        ("harness/cli/commands/replay.py", "from rlcore import config"),
        ("harness/cli/commands/replay.py", "import importlib\nimportlib.import_module('rlcore.config')"),
        ("harness/runner/run.py", "def f():\n    if True:\n        import torch.cuda as c"),
        ("harness/runner/launch.py", "import ray"),
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
        ("harness/recording/op_mode.py", "import torch\ntorch.cuda.is_available()"),
        ("harness/cli/main.py", "raise SystemExit(1)"),
        ("harness/doctor/gpus.py", "import pynvml"),
        ("harness/render/plain.py", "from rich.console import Console"),
        ("harness/machine/network.py", "from asyncio_pool import AioPool"),
        ("harness/runner/run.py", "def f(path):\n    with open(path) as file: pass"),
        ("harness/runner/run.py", "def f(path):\n    path.read_text('utf-8')"),
        ("rlcore/models/tokenizer.py", "def f(path):\n    path.read_bytes()"),
        ("rlcore/models/tokenizer.py", "from tokenizers import Tokenizer\nTokenizer.from_file('a')"),
        ("rlcore/models/tokenizer.py", "import json\njson.loads('1')"),
        ("rlcore/models/build.py", "from safetensors import safe_open\nsafe_open('a')"),
        ("tests/runner/test_run.py", "from hypothesis import HealthCheck, given"),
    ],
)
def test_a_trespass_is_found(path: str, code: str) -> None:
    assert [line for rule in OWNED for line in trespasses(Source(path, code), rule)]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("harness/core/text.py", "from harness.process import scratch"),
        ("harness/process/scratch.py", "def f():\n    from harness.machine.gpus import read_inventory"),
        ("harness/determinism/level_environment.py", "import harness.machine.gpus"),
        ("harness/trace/diff.py", "from harness.recording import recorder"),
        ("harness/lab/experiments/session.py", "from ..gate import plan"),
        ("harness/lab/gate/plan.py", "from harness.lab.bisect.search import Search"),
        ("harness/runner/run.py", "import importlib\nimportlib.import_module('harness.render.run_reporters')"),
        ("harness/render/gate.py", "from harness.cli import main"),
        ("harness/newcomer/a.py", "import os"),
    ],
)
def test_an_upward_import_is_found(path: str, code: str) -> None:
    assert upward_imports(Source(path, code), LAYERS)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("harness/cli/commands/gate.py", "from harness.render import gate\nfrom harness.lab.gate import plan"),
        ("harness/lab/gate/plan.py", "from . import policy\nfrom harness.lab.experiments import launcher"),
        ("harness/core/config.py", "from harness.plugin import MarkError\nimport harness"),
        ("harness/trace/diff.py", "import json\nfrom harness.determinism import known_variables"),
    ],
)
def test_a_downward_import_is_left_alone(path: str, code: str) -> None:
    assert upward_imports(Source(path, code), LAYERS) == []


def test_a_cycle_of_files_is_found() -> None:
    texts = {
        "a": "from harness.trace import b",
        "b": "def f():\n    from .c import x",
        "c": "from . import a",
    }
    cycle = [Source(f"harness/trace/{name}.py", text) for name, text in texts.items()]
    assert import_cycles(cycle) == [("harness.trace.a", "harness.trace.b", "harness.trace.c")]
    assert import_cycles(cycle[:2]) == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("harness/core/clock.py", "import time\ntime.monotonic()"),
        ("harness/process/supervisor/main.py", "import os\nos.killpg(1, 9)"),
        ("harness/recording/recorder.py", "import torch"),
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


def test_vague_names_and_stubs_are_found() -> None:
    assert is_vague("harness/utils.py")
    assert is_vague("harness/common/x.py")
    assert not is_vague("harness/commons.py")
    assert is_stub(Source("harness/lab/gate.py", '"""Later."""\n'))
    assert is_stub(Source("harness/lab/gate.py", "def gate():\n    raise NotImplementedError"))
    assert not is_stub(Source("harness/lab/__init__.py", '"""The lab."""\n'))
    assert empty_packages(["harness/lab/__init__.py", "harness/a/__init__.py", "harness/a/b.py"]) == {"harness/lab"}
