"""Configurations of training runs, changed for tests."""

from collections.abc import Mapping
from typing import Any

from rlcore.config import RunConfig


def with_section(of: RunConfig, name: str, values: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with these values in one of its sections."""
    section = getattr(of, name)
    return of.model_copy(update={name: section.model_copy(update=dict(values))})
