"""A pytest plugin: arguments that name a file such as `test_[1].py` or `test_a::b.py`.

pytest finds such a file in a directory. As an argument, it takes `[` and `::` in the name for those of a node id.
"""

import dataclasses
import os
from collections.abc import Generator
from typing import Any

import pytest
from _pytest import main

from harness.runner.selections import is_oddly_named, split_node_id


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Replace the one function that takes an argument apart: pytest has no hook for it."""
    resolve = main.resolve_collection_argument

    def resolve_odd(invocation_path: Any, argument: str, *args: Any, **kwargs: Any) -> Any:
        file, rest = split_node_id(argument, invocation_path)
        if not is_oddly_named(file) or not os.path.lexists(invocation_path / file):
            return resolve(invocation_path, argument, *args, **kwargs)
        plain = os.sep if os.path.isdir(invocation_path / file) else os.devnull
        found = resolve(invocation_path, f"{plain}::{rest}" if rest else plain, *args, **kwargs)
        return dataclasses.replace(found, path=type(invocation_path)(os.path.abspath(invocation_path / file)))

    main.resolve_collection_argument = resolve_odd  # type: ignore[assignment]
    try:
        return (yield)
    finally:
        main.resolve_collection_argument = resolve
