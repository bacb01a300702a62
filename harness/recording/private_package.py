"""This package under a name of its own, beside another package of its name. The standard library only."""

import ast
import importlib.util
import re
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
OWN = re.compile(rf"{PACKAGE.name}(?=[.:]|$)")
PRIVATE = f"_rl{PACKAGE.name}"


def private(name: str) -> str:
    """Return the private name of a module of this package; any other as it is."""
    return OWN.sub(PRIVATE, name) if OWN.match(name) else name


class PrivateLoader(SourceFileLoader):
    """Loads a module of this package so that what it imports of the package, or names, is private too."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the source, which no file of bytecode holds."""
        tree = ast.parse(self.get_data(self.path), self.path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                node.module = private(node.module)
            elif isinstance(node, ast.alias | ast.Constant):
                field = "name" if isinstance(node, ast.alias) else "value"
                if isinstance(text := getattr(node, field), str):
                    setattr(node, field, private(text))
        return compile(tree, self.path, "exec", dont_inherit=True)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if name.partition(".")[0] != PRIVATE:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.origin is not None:
            spec.loader = PrivateLoader(name, spec.origin)
        return spec


def import_privately() -> str:
    """Make the package importable under its private name, which is returned."""
    if PRIVATE not in sys.modules:
        init = PACKAGE / "__init__.py"
        loader = PrivateLoader(PRIVATE, str(init))
        spec = importlib.util.spec_from_file_location(
            PRIVATE, init, loader=loader, submodule_search_locations=[str(PACKAGE)]
        )
        assert spec is not None
        sys.modules[PRIVATE] = module = importlib.util.module_from_spec(spec)
        sys.meta_path.insert(0, _Finder)
        loader.exec_module(module)
    return PRIVATE
