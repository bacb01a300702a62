"""Which tests of a file belong together: those with a tie in common run in one process."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

SHARING = ("module", "package")
"""Scopes of a fixture whose value several tests of a file share, in whatever classes they are."""
BUILT_IN = ("_pytest", "harness")
"""Packages whose fixtures hold no state of the suite."""
XUNIT = ("_xunit_setup_", "_unittest_set")
"""Beginnings of the names under which pytest runs the suite's own `setup_module`, `setUpClass` and the like."""
DEPENDENT = ("dependency", "order")
"""Markers of plugins with which a test refers to other tests of its file."""


def ties_of(item: pytest.Item) -> list[str]:
    """Return what ties a test to others: tests with a tie in common run in one process.

    A tie is a kind and a name: `together A`, `marker dependency`, `class tests/a.py::TestX`, `module-fixture engine`.
    """
    return list(dict.fromkeys(_ties(item)))


def _ties(item: pytest.Item) -> Iterator[str]:
    for marker in ("together", "xdist_group"):
        if mark := item.get_closest_marker(marker):
            name = mark.args[0] if mark.args else mark.kwargs.get("name", "default")
            yield f"together {name}"
            break
    yield from (f"marker {name}" for name in DEPENDENT if item.get_closest_marker(name))
    above = item.getparent(pytest.Class)
    if above and item.get_closest_marker("incremental"):
        yield f"class {above.nodeid}"
    info: Any = getattr(item, "_fixtureinfo", None)  # pytest has no public way from a test to its fixtures
    definitions: dict[str, Sequence[Any]] = getattr(info, "name2fixturedefs", None) or {}
    for name, found in definitions.items():
        scope = found[-1].scope
        if scope in SHARING and _is_of_suite(name, found[-1]):
            yield f"{scope}-fixture {_shown(name)}"
        elif above and scope == "class" and _is_of_suite(name, found[-1]):  # a function has one of its own
            yield f"class {above.nodeid}"


def _is_of_suite(name: str, definition: Any) -> bool:
    package = str(getattr(definition.func, "__module__", "")).partition(".")[0]
    return name.startswith(XUNIT) or package not in BUILT_IN


def _shown(name: str) -> str:
    return "setup_module" if name.startswith(XUNIT) else name
