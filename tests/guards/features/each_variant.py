"""Trains each variant of base.json with its key and without it, in one process; seen.json has what came of both.

variants.json: key -> the settings of its variant, by dotted key. Equal configurations are trained once.
"""

import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore.entrypoint import run
from rlcore.log import NullRecorder, PartRecorder


class _Values:
    """A recorder: one digest of all values."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def begin_step(self, step: int) -> None:
        """Nothing."""

    def record(self, phase: str, name: str, value: Any) -> None:
        """Add a value to the digest."""
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        self.digest.update(repr((phase, name, value)).encode())

    def end_step(self, **values: Any) -> None:
        """Nothing."""

    def share(self, num_others: int) -> Sequence[Callable[[], PartRecorder]]:
        """Let no other process record."""
        return NullRecorder().share(num_others)


class _Operations(TorchDispatchMode):
    """One digest of all operations: names, threads, and shapes of operands."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.digest = hashlib.sha256()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shapes = [tuple(each.shape) for each in args if isinstance(each, torch.Tensor)]
        self.digest.update(f"{func}{shapes}{torch.get_num_threads()}".encode())
        return func(*args, **(kwargs or {}))


def _trained(settings: dict[str, Any], directory: Path) -> dict[str, Any]:
    config = json.loads(Path("base.json").read_text("utf-8"))
    for key, value in settings.items():
        *sections, name = key.split(".")
        table = config
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    directory.mkdir()
    values, operations, said, error = _Values(), _Operations(), io.StringIO(), ""
    try:
        with contextlib.redirect_stderr(said), operations:
            run(config, level="off", directory=directory, recorder=values)
    except Exception as problem:  # a refusal, which a row may look for
        error = f"{type(problem).__name__}: {problem}"
    return {
        "values": values.digest.hexdigest(),
        "operations": operations.digest.hexdigest(),
        "said": said.getvalue(),
        "error": error,
        "files": sorted(str(path.relative_to(directory)) for path in directory.rglob("*")),
        "has_vllm": "vllm" in sys.modules,
    }


def main() -> None:
    """Train all variants of this directory."""
    known: dict[str, dict[str, Any]] = {}
    seen = {}
    for key, settings in {"": {}, **json.loads(Path("variants.json").read_text("utf-8"))}.items():
        both = (settings, {name: value for name, value in settings.items() if name != key})
        for each in both:
            if json.dumps(each) not in known:
                known[json.dumps(each)] = _trained(each, Path(f"run-{len(known)}"))
        seen[key] = [known[json.dumps(each)] for each in both]
    Path("seen.json").write_text(json.dumps(seen, indent=1), "utf-8")


if __name__ == "__main__":
    main()
