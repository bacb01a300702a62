"""What is wrong in a configuration, in the words of who wrote it: dotted keys, the values, what is legal there.

The checks are pydantic's; its words are those of a programmer ("a valid dictionary or instance of ModelSection").
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from rlcore.errors import InvalidValueError

KINDS: Mapping[str, str] = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "model_type": "keys with values",
    "model_attributes_type": "keys with values",
    "union_tag_not_found": "keys with values, a name among them",
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
    "union_tag_invalid": "{expected_tags}",
}
"""What is legal, by the type of a fault; fields are those of its context."""
FOLLOWS = "default_factory_not_called"
"""A default that could not be derived: another fault, in what it is derived from, is in the same list."""


def as_error(error: ValidationError, model: type[BaseModel]) -> InvalidValueError:
    """All that pydantic has found, as one error; `model` is that of the whole configuration."""
    faults = [_fault(dict(each), model) for each in error.errors() if each["type"] != FOLLOWS]
    return InvalidValueError(
        "; ".join(fault.what for fault in faults),
        legal="; ".join(fault.legal for fault in faults if fault.legal),
        remedy="; ".join(fault.remedy for fault in faults if fault.remedy),
    )


def _fault(found: Mapping[str, Any], model: type[BaseModel]) -> InvalidValueError:
    context = found.get("ctx", {})
    own = context.get("error")
    if isinstance(own, InvalidValueError):  # a check between several keys
        return own
    sections = list(_sections(found["loc"], model))
    dotted = ".".join(key for key, _ in sections)
    if found["type"] == "extra_forbidden":
        if new := RENAMED.get(dotted):
            return InvalidValueError(f"{dotted} is now called {new}", legal=new)
        return InvalidValueError(f"unknown key {dotted}", legal=_nearest(*sections[-1]))
    if found["type"] == "missing":
        return InvalidValueError(f"{dotted} is missing", remedy=f"set {dotted}")
    if found["type"] == "union_tag_invalid":
        dotted += ".name"
        value = context["tag"]
    else:
        value = found["input"]
    legal = KINDS[found["type"]].format(**context) if found["type"] in KINDS else found["msg"]
    return InvalidValueError(f"{dotted or 'the configuration'} is {value!r}", legal=legal)


def _sections(loc: tuple[int | str, ...], model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """Each key on the way to a fault, and the section it stands in.

    After the key of a section of which there are several, pydantic tells the name of the one that was taken: no key.
    """
    choices: dict[str, type[BaseModel]] = {}
    for part in map(str, loc):
        if part in choices:
            model, choices = choices[part], {}
            continue
        yield part, model
        field = model.model_fields.get(part)
        kinds = [field.annotation, *get_args(field.annotation)] if field else []
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if len(sections) == 1:
            model = sections[0]
        elif sections:
            choices = {str(each.model_fields["name"].default): each for each in sections}


RENAMED: Mapping[str, str] = {
    "perturbation": "runtime",
    "runtime.microbatch_tokens": "runtime.token_budget",
    "training.lane_width": "training.microbatch_size",
}
"""Old dotted keys, each refused with the present one."""


def _nearest(key: str, model: type[BaseModel]) -> str:
    """The legal keys of a section, the nearest to an unknown one first."""
    names = list(model.model_fields)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    every = ", ".join(names)
    return f"{near[0]}? All: {every}" if near else every
