"""HTML elements whose text is always escaped. Pages of runs need no template library, which is an extra."""

from collections.abc import Iterable
from html import escape

VOID = frozenset(("meta", "link", "input", "br"))


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable[str] | None
Attribute = str | int | bool | None


def element(tag: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """An element; children that are no Markup are text. `class_` is class, `data_zoom` data-zoom; False is absent."""
    words = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in VOID:
        return Markup(f"<{tag}{words}>")
    return Markup(f"<{tag}{words}>{''.join(map(joined, children))}</{tag}>")


def joined(child: Child) -> Markup:
    """Children in their order, text escaped."""
    if child is None:
        return Markup("")
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return Markup(escape(child, quote=False))
    return Markup("".join(map(joined, child)))
