"""The base of all sections of a configuration, and types of their fields. No torch."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict

Positive = Annotated[int, Field(ge=1)]
Threads = Annotated[int, Field(ge=1, le=1024)]
"""Threads of torch, which ends the process where the system refuses them."""
Ranks = Annotated[int, Field(ge=1, le=65_536)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Texts = Annotated[tuple[str, ...], Strict(False)]
Numbers = Annotated[tuple[float, ...], Strict(False)]
"""Lists too; what is in them has to be what it says, like all else."""


class Section(BaseModel):
    """A part of a configuration."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
