"""The rules of the house, read off the source: who may import whom, who owns which side effect, how large things grow.

A rule is a small function from a `Source` to the lines that break it, and has a planted violation it must find.
Tables come first: what is owned by whom, and what is exempt with its reason.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("harness", "rlcore", "scenarios", "tests")
FIRST_PARTY = frozenset(ROOMS)

MAX_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8
VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "manager"})

CHILD_ROOMS = (  # entered by child processes only; the ones that do not exist yet are named by the design
    "harness/fixtures/",
    "harness/inject/",
    "harness/machine/distributed_probe.py",
    "harness/runner/launch_ray.py",
)
SUPERVISOR = ("harness/runner/supervisor/",)


@dataclass(frozen=True, slots=True)
class Owned:
    """Names that, within one room, only their owners may use."""

    within: str
    names: tuple[str, ...]
    """Dotted names, each with everything below it; ".kill()" is a method of anything, called without argument."""
    owners: tuple[str, ...]
    """Files, or folders ending in a slash; nobody where empty."""


OWNED = (
    Owned("rlcore/", ("harness", "scenarios"), ()),
    Owned("rlcore/config", ("torch",), ()),
    Owned("rlcore/errors", ("torch",), ()),
    Owned("rlcore/metrics", ("torch",), ()),
    Owned("rlcore/keys", ("torch",), ()),
    Owned("harness/", ("rlcore", "scenarios", "tests"), ()),
    Owned("harness/", ("torch", "ray", "vllm", "transformers", "numpy"), CHILD_ROOMS),
    Owned("harness/", ("time", "datetime.datetime.now", "datetime.datetime.utcnow"), ("harness/clock.py",)),
    Owned("harness/", ("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"), ("harness/cli.py",)),
    Owned("harness/", ("os.kill", "os.killpg", "signal.pidfd_send_signal", "signal.raise_signal"), SUPERVISOR),
    Owned("harness/", (".kill()", ".terminate()", ".send_signal()", "os._exit", "os.abort"), SUPERVISOR),
    Owned("harness/", ("sys.exit", "builtins.SystemExit", "builtins.exit", "builtins.quit"), ("harness/__main__.py",)),
    Owned("harness/", ("pynvml",), ("harness/machine/gpus.py",)),
    Owned("harness/", ("rich",), ("harness/reporters/live.py",)),
    Owned("harness/", ("asyncio_pool",), ("harness/fan_out.py",)),
    Owned("harness/", ("click",), ("harness/cli.py",)),
    Owned("harness/", ("sqlite3",), ("harness/runner/history.py",)),
    Owned("harness/", ("junitparser",), ("harness/reporters/junit.py",)),
    Owned("harness/", ("pytest", "_pytest"), ("harness/plugin.py", "harness/fixtures/")),
)

EXEMPT: dict[str, str] = {
    # "path", "path:function" (its length) or "path:function()" (its parameters) -> the reason
}

RUN_AS_PROGRAMS = frozenset({"py-spy"})  # dependencies that are started, never imported
HEAVY = ("torch", "numpy", "ray", "pydantic", "rich", "pynvml", "psutil", "sqlite3", "asyncio", "junitparser", "pytest")


@dataclass(frozen=True)
class Source:
    """One Python file of the house."""

    path: str
    """Relative to the root, with forward slashes."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def package(self) -> tuple[str, ...]:
        return tuple(self.path.split("/")[:-1])

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def house() -> list[Source]:
    files = [ROOT / "conftest.py", *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))]
    return [Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in files]


SOURCES = house()


def imports(source: Source) -> Iterator[tuple[str, str]]:
    """(name bound or "", dotted origin) of every import at any depth; relative and import_module too."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.asname or "", alias.name
                    if not alias.asname:  # `import a.b` binds a
                        yield alias.name.partition(".")[0], alias.name.partition(".")[0]
            case ast.ImportFrom(module=module, names=names, level=level):
                above = source.package[: len(source.package) - level + 1] if level else ()
                base = ".".join((*above, *([module] if module else [])))
                for alias in names:
                    yield alias.asname or alias.name, f"{base}.{alias.name}"
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name)), *_]
            ) if called in ("import_module", "__import__"):
                yield "", name


@cache
def uses(source: Source) -> set[str]:
    """Every dotted name the file imports or reaches through what it imports, builtins, and ".method()" calls."""
    found = set()
    origins: dict[str, set[str]] = {}
    for local, origin in imports(source):
        found.add(origin)
        origins.setdefault(local, set()).add(origin)
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name):
            found |= origins.get(node.id, {f"builtins.{node.id}"})
        elif isinstance(node, ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            found |= {f"{origin}.{rest}" for origin in origins.get(head, ())}
        elif isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
            found.add(f".{node.func.attr}()")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "send_signal":
            found.add(".send_signal()")
    return found


def stands_below(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def is_among(path: str, places: Iterable[str]) -> bool:
    return any(path == place or (place.endswith("/") and path.startswith(place)) for place in places)


def trespasses(source: Source, rule: Owned) -> list[str]:
    if not source.path.startswith(rule.within) or is_among(source.path, rule.owners):
        return []
    return [
        f"{source.path} uses {name}, which belongs to {', '.join(rule.owners) or 'nobody there'}"
        for name in sorted(uses(source))
        if any(stands_below(name, owned) for owned in rule.names)
    ]


def oversized(source: Source) -> dict[str, str]:
    """Exemption key -> what is too large."""
    found = {}
    num_lines = source.text.count("\n")
    if num_lines > MAX_LINES:
        found[source.path] = f"{num_lines} lines, at most {MAX_LINES}"
    for node in source.functions:
        key = f"{source.path}:{node.name}"
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > MAX_FUNCTION_LINES:
            found[key] = f"{length} lines, at most {MAX_FUNCTION_LINES}"
        names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        num_parameters = len([name for name in names if name not in ("self", "cls")])
        if num_parameters > MAX_PARAMETERS:
            found[f"{key}()"] = f"{num_parameters} parameters, at most {MAX_PARAMETERS}"
    return found


def is_vague(path: str) -> bool:
    return not VAGUE_NAMES.isdisjoint(part.removesuffix(".py") for part in path.split("/"))


def is_stub(source: Source) -> bool:
    """Whether a file that is not a package's own holds nothing but a docstring, or any holds an unwritten function."""

    def says_nothing(node: ast.stmt) -> bool:
        return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))

    is_package_file = source.path.endswith("/__init__.py")
    return "builtins.NotImplementedError" in uses(source) or (
        not is_package_file and all(says_nothing(node) for node in source.tree.body)
    )


def empty_packages(paths: Iterable[str]) -> set[str]:
    """Folders with an `__init__.py` and nothing else, out of the paths of all files."""
    files = set(paths)
    packages = {path.rpartition("/")[0] for path in files if path.endswith("/__init__.py")}
    return {room for room in packages if not any(f.startswith(f"{room}/") for f in files - {f"{room}/__init__.py"})}


def third_party(source: Source) -> set[str]:
    """Top-level modules the file imports that are neither the standard library's nor ours."""
    modules = {origin.partition(".")[0] for _, origin in imports(source)}
    return {name for name in modules if name not in sys.stdlib_module_names and name not in FIRST_PARTY}


def distribution_name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def distributions_of(modules: Iterable[str]) -> set[str]:
    return {name.lower().replace("_", "-") for module in modules for name in installed().get(module, [module])}


@cache
def installed() -> Mapping[str, list[str]]:
    """Top-level module -> the distributions of this environment that bring it."""
    return metadata.packages_distributions()


def declared(*extras: str) -> set[str]:
    """Distributions of the base and of these extras, as pyproject.toml names them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    requirements = [*project["dependencies"], *(r for e in extras for r in project["optional-dependencies"][e])]
    return {distribution_name(r) for r in requirements} - {"rlharness"}


# ---------------------------------------------------------------------------------------------- the house keeps them


@pytest.mark.parametrize("rule", OWNED, ids=lambda rule: f"{rule.within.strip('/')}-{rule.names[0]}")
def test_only_owners_use_what_they_own(rule: Owned) -> None:
    assert [line for source in SOURCES for line in trespasses(source, rule)] == []


def test_nothing_outgrows_its_limit() -> None:
    found = {key: text for source in SOURCES for key, text in oversized(source).items()}
    assert {key: text for key, text in found.items() if key not in EXEMPT} == {}
    assert {key for key in EXEMPT if key not in found} == set(), "exemptions nobody needs any more"


def test_names_say_what_a_file_is() -> None:
    assert [source.path for source in SOURCES if is_vague(source.path)] == []


def test_no_room_is_a_stub() -> None:
    assert [source.path for source in SOURCES if is_stub(source) and "misbehaving/" not in source.path] == []
    paths = [p.relative_to(ROOT).as_posix() for room in ROOMS for p in (ROOT / room).rglob("*") if p.is_file()]
    assert empty_packages(path for path in paths if "__pycache__" not in path) == set()


def test_the_plugin_needs_nothing_but_pytest() -> None:
    (plugin,) = [source for source in SOURCES if source.path == "harness/plugin.py"]
    assert third_party(plugin) == {"pytest"}
    assert [origin for _, origin in imports(plugin) if origin.partition(".")[0] in FIRST_PARTY] == []


def test_imports_are_declared() -> None:
    base = declared()
    everything = declared("engine", "ray", "tests")
    undeclared = {
        source.path: missing
        for source in SOURCES
        if (missing := distributions_of(third_party(source)) - allowed_distributions(source.path, base, everything))
    }
    assert undeclared == {}


def allowed_distributions(path: str, base: set[str], everything: set[str]) -> set[str]:
    """What a file may import: tests everything but Ray, which they ask for with importorskip."""
    if path.startswith("harness/"):
        return everything if is_among(path, CHILD_ROOMS) else base
    return everything if path.startswith("scenarios/") else everything - {"ray"}


def test_dependencies_are_used() -> None:
    harness = [source for source in SOURCES if source.path.startswith("harness/")]
    used = distributions_of({name for source in harness for name in third_party(source)})
    assert declared() - used == RUN_AS_PROGRAMS
    texts = "".join(source.text for source in harness)
    assert {program for program in RUN_AS_PROGRAMS if program not in texts} == set()


def test_the_command_line_is_light() -> None:
    code = f"import harness.cli, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


# ------------------------------------------------------------------------------------------- each rule finds a breach


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("rlcore/types.py", "import harness.clock"),
        ("rlcore/types.py", "def f():\n    from scenarios import nvml_stub"),
        ("rlcore/config.py", "import torch"),
        ("harness/lab/replay.py", "from rlcore import config"),
        ("harness/lab/replay.py", "import importlib\nimportlib.import_module('rlcore.config')"),
        ("harness/runner/run.py", "def f():\n    if True:\n        import torch.cuda as c"),
        ("harness/runner/launch.py", "import ray"),
        ("harness/runner/run.py", "from ..machine import gpus\nimport time"),
        ("harness/runner/run.py", "from time import monotonic as now"),
        ("harness/runner/run.py", "import datetime as d\nd.datetime.now()"),
        ("harness/runner/run.py", "from datetime import datetime\ndatetime.now(tz=None)"),
        ("harness/machine/child_env.py", "import os\nos.environ['A'] = 'b'"),
        ("harness/machine/child_env.py", "from os import environ as e"),
        ("harness/machine/child_env.py", "import os\nos.getenv('A')"),
        ("harness/runner/run.py", "import os as o\no.killpg(1, 9)"),
        ("harness/runner/run.py", "def f(process):\n    process.kill()"),
        ("harness/runner/run.py", "def f(process):\n    process.send_signal(9)"),
        ("harness/cli.py", "import sys\nsys.exit(1)"),
        ("harness/cli.py", "raise SystemExit(1)"),
        ("harness/machine/doctor.py", "import pynvml"),
        ("harness/reporters/plain.py", "from rich.console import Console"),
        ("harness/machine/network.py", "from asyncio_pool import AioPool"),
    ],
)
def test_a_trespass_is_found(path: str, code: str) -> None:
    assert [line for rule in OWNED for line in trespasses(Source(path, code), rule)]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("harness/clock.py", "import time\ntime.monotonic()"),
        ("harness/runner/supervisor/main.py", "import os\nos.killpg(1, 9)"),
        ("harness/inject/recorder.py", "import torch"),
        ("harness/runner/run.py", "import os\nimport datetime\nos.getpid()\ndatetime.timedelta(1)"),
        ("harness/runner/run.py", "def f(supervisors):\n    supervisors.kill('marker')"),
        ("tests/runner/test_run.py", "import time, torch, os\nos.environ"),
    ],
)
def test_an_owner_is_left_alone(path: str, code: str) -> None:
    assert [line for rule in OWNED for line in trespasses(Source(path, code), rule)] == []


def test_relative_imports_are_resolved() -> None:
    code = "from . import gate\nfrom ..machine.gpus import read\nfrom ... import rlcore"
    origins = [origin for _, origin in imports(Source("harness/lab/replay.py", code))]
    assert origins == ["harness.lab.gate", "harness.machine.gpus.read", ".rlcore"]


def test_growth_is_found() -> None:
    body = "    x = 1\n" * MAX_FUNCTION_LINES
    parameters = ", ".join(f"a{i}" for i in range(MAX_PARAMETERS))
    source = Source(
        "harness/a.py", f"def long():\n{body}\ndef wide(self, {parameters}, *, b): ...\n" + "\n" * MAX_LINES
    )
    assert set(oversized(source)) == {"harness/a.py", "harness/a.py:long", "harness/a.py:wide()"}
    fitting = Source("harness/a.py", f"def long():\n{body[10:]}\ndef wide(self, {parameters}): ...\n")
    assert oversized(fitting) == {}


def test_vague_names_and_stubs_are_found() -> None:
    assert is_vague("harness/utils.py")
    assert is_vague("harness/common/x.py")
    assert not is_vague("harness/commons.py")
    assert is_stub(Source("harness/lab/gate.py", '"""Later."""\n'))
    assert is_stub(Source("harness/lab/gate.py", "def gate():\n    raise NotImplementedError"))
    assert not is_stub(Source("harness/lab/__init__.py", '"""The lab."""\n'))
    assert empty_packages(["harness/lab/__init__.py", "harness/a/__init__.py", "harness/a/b.py"]) == {"harness/lab"}


def test_third_party_imports_are_found() -> None:
    source = Source(
        "harness/a.py", "import os, torch.cuda\ndef f():\n    from rich.text import Text\nimport harness.clock"
    )
    assert third_party(source) == {"torch", "rich"}
    assert distribution_name("Ray_X[default]>=2.50; python_version > '3'") == "ray-x"
    assert distributions_of({"pynvml", "nowhere_to_be_found"}) == {"nvidia-ml-py", "nowhere-to-be-found"}
