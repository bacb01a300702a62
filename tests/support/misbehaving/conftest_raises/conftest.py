"""Raises when it is imported."""

raise RuntimeError("this conftest cannot be imported")
