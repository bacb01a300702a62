"""Run by another library's interpreter, `serve.py FUNCTIONS`: answers calls of that file's FUNCTIONS, a line each.

    {"function": name, "arguments": {...}} ──▶ {"result": ...} or {"error": traceback}

Tensors travel as {"dtype": ..., "values": nested lists}; JSON's floats are doubles, NaN and infinity among them: no bit
is lost. It imports torch and nothing of ours, which the other environment does not have.
"""

import json
import os
import runpy
import sys
import traceback
from typing import Any, TextIO

import torch


def encoded(value: Any) -> Any:
    """What `json` can write: tensors, and whatever holds them."""
    match value:
        case torch.Tensor():
            return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.detach().tolist()}
        case dict():
            return {name: encoded(each) for name, each in value.items()}
        case list() | tuple():
            return [encoded(each) for each in value]
        case _:
            return value


def decoded(value: Any) -> Any:
    """What `encoded` was given; tuples come back as lists."""
    match value:
        case {"dtype": str(dtype), "values": values}:
            return torch.tensor(values, dtype=getattr(torch, dtype))
        case dict():
            return {name: decoded(each) for name, each in value.items()}
        case list():
            return [decoded(each) for each in value]
        case _:
            return value


def answer(functions: dict[str, Any], line: str) -> dict[str, Any]:
    """What a line asks for, or why not."""
    asked = decoded(json.loads(line))
    try:
        return {"result": encoded(functions[asked["function"]](**asked["arguments"]))}
    except Exception:  # whatever the library raises is the caller's to see
        return {"error": traceback.format_exc()}


def only_ours(descriptor: int) -> TextIO:
    """A way to write to where `descriptor` leads; what libraries print there goes to standard error from now on."""
    stream = os.fdopen(os.dup(descriptor), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), descriptor)
    return stream


def main() -> None:
    """Answer until standard input ends."""
    answers = only_ours(sys.stdout.fileno())
    torch.set_num_threads(1)
    functions = runpy.run_path(sys.argv[1])["FUNCTIONS"]
    for line in sys.stdin:
        answers.write(json.dumps(answer(functions, line)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
