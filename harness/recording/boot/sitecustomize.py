"""Python imports this before anything else where its directory is on PYTHONPATH: a recorded program's every process.

It needs nothing but the standard library, and does little: most processes never import torch. The program's own
directory is not on the import path yet, so that nothing may be imported here that the program could have another of.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent
OLDEST = (3, 11)


def run_the_next() -> None:
    """The sitecustomize that this one hides."""
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def level_problem(orders: dict[str, Any]) -> str:
    """Return why this process is not at the level; empty if it has all of the level's variables.

    It matters to a process that takes steps. Libraries start children with variables of their own, and those run.
    """
    for name, value in orders["level_env"].items():
        if (found := os.environ.get(name, "not set")) != value:
            return (
                f"the level {orders['level']!r} wants {name}={value}, and this process was started with it {found}:"
                f" let the program leave {name} alone, or start rlharness with the value that it sets"
            )
    return ""


def load(path: Path, name: str = "") -> ModuleType:
    """A module of this harness from its file, under a name that no program has; or the package, under its own."""
    locations = [str(path.parent)] if name else None
    name = name or f"_rlharness_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=locations)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if locations:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def redacted(argv: list[str]) -> list[str]:
    """A command line without secrets; of an interpreter that cannot load what takes them out, the program alone."""
    try:
        return list(load(PACKAGE / "bits" / "redaction.py").redact_argv(argv))
    except Exception:  # an interpreter of any age: whatever it does not know, the program goes on
        return argv[:1]


def report(orders: dict[str, Any], problem: str) -> None:
    """Say why this process is not recorded, where its launcher looks for it."""
    directory = Path(orders["directory"], "processes")
    directory.mkdir(parents=True, exist_ok=True)
    fields = {"pid": os.getpid(), "argv": redacted(sys.argv), "python": sys.executable, "problem": problem}
    (directory / f"{os.getpid()}.json").write_text(json.dumps(fields) + "\n", "utf-8")


def main() -> None:
    """Watch for torch, where the variable says so."""
    path = os.environ.get("RLHARNESS_TRACE")
    if not path:
        return
    orders = json.loads(Path(path).read_text("utf-8"))
    orders["level_problem"] = level_problem(orders)
    if sys.version_info < OLDEST:
        report(orders, f"Python {sys.version.split()[0]} is too old: 3.11 or newer")
        return

    def bring_package() -> str:
        try:
            import xxhash  # noqa: F401
        except ImportError:
            report(orders, f"xxhash is not installed: {sys.executable} -m pip install xxhash")
            return ""
        init, spec = PACKAGE / "__init__.py", importlib.util.find_spec(PACKAGE.name)
        if spec is None:  # nothing else that lies beside this package becomes importable
            load(init, PACKAGE.name)
        elif spec.origin is None or Path(spec.origin).resolve() != init:  # the program has another of this name
            package = load(HERE.parent / "private_package.py")
            orders["callbacks"] = {package.private(name): fields for name, fields in orders["callbacks"].items()}
            return str(package.import_privately())
        return PACKAGE.name

    hooks = load(HERE.parent / "boot_hooks.py")
    hooks.after_import(hooks.import_hooks(orders, bring_package, lambda problem: report(orders, problem)))


try:
    run_the_next()
finally:
    main()
