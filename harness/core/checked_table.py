"""Tables of TOML checked against dataclasses: each field has a type with its check and, in words, what is legal."""

import difflib
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

from harness.core.errors import UsageError

T = TypeVar("T")


def _spelt(name: str) -> str:
    """The key of a field: `collect-timeout` for `collect_timeout_s`."""
    return name.removesuffix("_s").removesuffix("_").replace("_", "-")


def keys_of(table: type[Any]) -> dict[str, tuple[Any, str]]:
    """Return, by the key of each field of a table, its type without None, and what is legal in words."""
    hints = get_type_hints(table, include_extras=True)
    return {_spelt(name): (_given(hint), legal_of(hint)) for name, hint in hints.items()}


def checked_table(table: type[T], given: dict[str, Any], where: str, more_keys: tuple[str, ...] = ()) -> T:
    """A `table` (a dataclass) of the values `given` under its keys; `more_keys` are legal here but read elsewhere."""
    from pydantic import TypeAdapter, ValidationError

    hints = {_spelt(name): (name, hint) for name, hint in get_type_hints(table, include_extras=True).items()}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in hints:
            keys = sorted([*more_keys, *hints])
            near = _nearest(key, keys)
            remedy = f"did you mean {near!r}?" if near else f"remove {key}"
            raise UsageError(f"{where} has no key {key!r}", legal=", ".join(keys), remedy=remedy)
        name, hint = hints[key]
        try:
            values[name] = TypeAdapter(hint, config={"strict": True, "allow_inf_nan": False}).validate_python(value)
        except ValidationError:
            raise UsageError(f"{where} {key} = {value!r}", legal=legal_of(hint), remedy=f"change {key}") from None
    return table(**values)


def _nearest(key: str, keys: list[str]) -> str:
    """Return the key that was most likely meant: one that begins like it, else a similar one; empty without any."""
    spelt = key.replace("_", "-")
    begins = [each for each in keys if each.startswith(spelt)]
    return next(iter(begins or difflib.get_close_matches(spelt, keys, n=1)), "")


def _given(hint: Any) -> Any:
    """Return the type of a value that is given: an optional type without its None."""
    rest = [each for each in get_args(hint) if each is not NoneType]
    return rest[0] if NoneType in get_args(hint) else hint


def legal_of(hint: Any) -> str:
    """The text for people in a field's type: of the type itself, or of the one it is optional of."""
    return next(
        text for each in (hint, *get_args(hint)) for text in getattr(each, "__metadata__", ()) if type(text) is str
    )
