"""YAML that selects and never computes: texts, numbers, truth values, nothing, lists and mappings.

Plain words are read by the core schema of YAML 1.2, not as PyYAML does by itself: `off` and `no` are texts, `3e-4` is a
number, `1:30` is not. Aliases, keys that are no texts and keys that are there twice are errors.
"""

import re
from typing import Any

import yaml

from harness.bits.errors import UsageError

MAX_CHARS = 1 << 18
"""Some seconds of parsing; a scenario has a few thousand."""
_TAG = "tag:yaml.org,2002:"
_WORDS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}


class _Plain(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[Any, Any] = {None: []}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next node; an alias of another is an error."""
        if self.check_event(yaml.AliasEvent):
            raise _fault("aliases are not supported", self.peek_event())  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping whose keys are texts, each of them once."""
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if key.tag != f"{_TAG}str" or keys.count(key.value) > 1:
                raise _fault(f"the key {key.value!r} is not text (put it in quotes) or appears twice", key)
        return super().construct_mapping(node, deep)


for _name, _pattern in _WORDS.items():
    _Plain.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), None)


def _fault(problem: str, place: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def read_yaml(text: str, where: str) -> Any:
    """Return the value of a text; UsageError, which begins with `where`, for what cannot be read."""
    try:
        if len(text) > MAX_CHARS:
            raise ValueError(f"{len(text):,} characters, and at most {MAX_CHARS:,} are allowed")
        return yaml.load(text, _Plain)  # a safe loader, with less in it
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        what = f"{where}{place}: {getattr(error, 'problem', None) or str(error).splitlines()[0]}"
    raise UsageError(
        what,
        legal="YAML of texts, numbers, true, false, null, lists and mappings, each key once",
        remedy="correct it there",
    )
