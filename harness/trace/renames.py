"""Names that recordings of earlier versions have otherwise: the one mapping by which old and new ones are compared."""

from collections.abc import Mapping

ENTRY = "(entry)"
"""Field of the identity that names the function which was called."""
ENTRIES = {"rlcore.training.run:run": "rlcore.entrypoint:run"}
"""Entries that have moved, by the name that recordings and scenario files may still have."""


def current_entry(name: str) -> str:
    """Return the name that an entry has now."""
    return ENTRIES.get(name, name)


def current_identity(identity: Mapping[str, str]) -> dict[str, str]:
    """Return an identity with the names of now. Chains begin with the identity as it was recorded, not with this."""
    return {name: current_entry(value) if name == ENTRY else value for name, value in identity.items()}
