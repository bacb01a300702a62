"""YAML that selects and never computes: texts, numbers, truth values, nothing, lists and mappings.

Plain words are read by the core schema of YAML 1.2, not as PyYAML does by itself: `off` and `no` are texts, `3e-4` is a
number, `1:30` is not. Tags, aliases, merged mappings, keys that are no texts and keys that are there twice are errors.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import yaml

from harness.bits.errors import UsageError

MAX_CHARS = 1 << 18
"""Some seconds of parsing; a scenario has a few thousand."""
_TAG = "tag:yaml.org,2002:"
_INT = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"


def _number(loader: "_Plain", node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    try:
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    except ValueError:  # more digits than Python reads
        raise _fault(f"{text[:20]}... is too long for a number", node) from None


def _float(loader: "_Plain", node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).lower()
    special = {".inf": math.inf, ".nan": math.nan}
    sign = -1.0 if text.startswith("-") else 1.0
    return sign * special[text.lstrip("+-")] if text.lstrip("+-") in special else float(text)


def _sequence(loader: "_Plain", node: yaml.SequenceNode) -> list[Any]:
    return [loader.construct_object(each, deep=True) for each in node.value]


def _mapping(loader: "_Plain", node: yaml.MappingNode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise _fault(f"the key {key!r} is not text: put it in quotes", key_node)
        if key in found:
            raise _fault(f"the key {key!r} appears twice", key_node)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


def _fault(problem: str, place: Any) -> yaml.MarkedYAMLError:
    """An error at a node or an event."""
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


_RESOLVERS: dict[Any, list[tuple[str, re.Pattern[str]]]] = {
    None: [
        (f"{_TAG}null", re.compile(r"(?:~|null|Null|NULL|)\Z")),
        (f"{_TAG}bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")),
        (f"{_TAG}int", re.compile(rf"(?:{_INT})\Z")),
        (f"{_TAG}float", re.compile(rf"(?:{_FLOAT})\Z")),
    ]
}
_CONSTRUCTORS: dict[Any, Callable[..., Any]] = {
    f"{_TAG}null": lambda loader, node: None,
    f"{_TAG}bool": lambda loader, node: loader.construct_scalar(node).lower() == "true",
    f"{_TAG}int": _number,
    f"{_TAG}float": _float,
    f"{_TAG}str": lambda loader, node: loader.construct_scalar(node),
    f"{_TAG}seq": _sequence,
    f"{_TAG}map": _mapping,
}


class _Plain(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS
    yaml_constructors = _CONSTRUCTORS

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """A node of a kind that its own characters say: no alias of another, no tag."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _fault("aliases are not supported", event)
        if tag := getattr(event, "tag", None):
            raise _fault(f"the tag {tag!r} is not supported", event)
        return super().compose_node(parent, index)


def read_yaml(text: str, where: str) -> Any:
    """The value of a text; UsageError, which begins with `where`, line and column, for what cannot be read."""
    if len(text) > MAX_CHARS:
        raise UsageError(
            f"{where}: {len(text):,} characters", legal=f"at most {MAX_CHARS:,}", remedy="keep data in files of its own"
        )
    try:
        return yaml.load(text, _Plain)  # a safe loader, with less in it
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = f"{where}{place}: {error.problem or error.context}"
    except yaml.YAMLError as error:  # characters that YAML has no place for
        what = f"{where}: {str(error).splitlines()[0]}"
    except RecursionError:
        what = f"{where}: nested too deep"
    raise UsageError(
        what,
        legal="YAML of texts, numbers, true, false, null, lists and mappings, each key once",
        remedy="correct it there",
    )
