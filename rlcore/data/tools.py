"""Tools, and the environment that answers calls of them in a completion.

    assistant  <calc>12*34</calc>      the closing tag is a stop string, and ends the turn
    tool       \\n408\\n               the answer, in the template of the environment
    assistant  408                     a turn without a call is the last

A tool is a function of the text between its tags and of a dict that the tools of one trajectory share; it returns text.
What it raises is its answer.
"""

import ast
import operator
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from harness.process.exhaustion import exhaustion_of
from rlcore.data.rewards import load_function
from rlcore.errors import InvalidValueError
from rlcore.rewards.text import matching
from rlcore.types import StopReason

Tool = Callable[[str, dict[str, Any]], object]
MAX_CHARS, MAX_BITS = 256, 512
"""Of an expression, and of a number on the way."""
SANDBOX = str(Path(__file__).with_name("sandbox.py"))
CLOCK_S = 60.0
"""Seconds by the clock after which a program is killed. It cannot wait, so that its processor time runs out first."""
OPERATIONS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
}


def calculator(text: str, state: dict[str, Any]) -> str:
    """Return the value of an expression of numbers, + - * / // % and parentheses. Raises ValueError."""
    if len(text) > MAX_CHARS:
        raise ValueError("a shorter expression")
    return str(_value(ast.parse(text.strip(), mode="eval").body))


def _value(node: ast.AST) -> int | float:
    found: int | float
    match node:
        case ast.Constant(value=int() | float() as found):
            pass
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATIONS:
            found = OPERATIONS[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            found = OPERATIONS[type(op)](_value(left), _value(right))
        case _:
            raise ValueError("numbers and + - * / // % alone")
    if isinstance(found, int) and found.bit_length() > MAX_BITS:
        raise ValueError("a smaller number")
    return found


def store(text: str, state: dict[str, Any]) -> str:
    """Keep `key=value` for the rest of the trajectory, or return the value of `key`. Raises KeyError."""
    name, is_written, value = map(str.strip, text.partition("="))
    state |= {name: value} if is_written else {}
    return str(state[name])


def python(text: str, state: dict[str, Any], *, cpu_s: int = 1, memory_mb: int = 512) -> str:
    """Return what a program prints: `rlcore.data.sandbox`. Each call is a process of its own."""
    command = [sys.executable, "-sSPB", SANDBOX, str(cpu_s), str(memory_mb << 20), text]
    env = {"PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8:replace"}
    void = subprocess.DEVNULL
    with tempfile.TemporaryFile() as file:
        done = subprocess.run(command, env=env, stdin=void, stdout=file, stderr=void, timeout=CLOCK_S, check=False)
        file.seek(0)
        said = file.read().decode("utf-8", "replace").strip()
    ended = f"\nerror: ended by status {done.returncode} within {cpu_s} s of processor time"
    return f"{said}{ended if done.returncode else ''}".strip()


@cache
def check_sandbox() -> None:
    """Check that programs run here within their limits. Raises InvalidValueError."""
    if (found := python("print(6 * 7)", {})) != "42":
        legal = "Linux on x86_64 or aarch64, where a process may set a seccomp filter"
        raise InvalidValueError(f"the tool python answers {found!r:.100}", legal=legal, remedy="leave the tool out")


TOOLS: Mapping[str, Tool] = {"calculator": calculator, "store": store, "python": python}
"""By the name in a configuration; `module:function` is a user's own."""


def load_tool(given: str | Mapping[str, Any]) -> tuple[Tool, bool]:
    """Return a tool by its name, or {"name": ..., its keyword arguments}, and whether it is deterministic."""
    arguments = {"name": given} if isinstance(given, str) else dict(given)
    name = arguments.pop("name", "")
    if name not in TOOLS and ":" not in name:
        raise InvalidValueError(f"tool {name!r}", legal=", ".join((*TOOLS, "module:function")))
    if name == "python":
        check_sandbox()
    function = TOOLS[name] if name in TOOLS else load_function(name, "tools")
    return partial(function, **arguments), getattr(function, "is_deterministic", True)


def tool_names(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of tools among the arguments of a ToolEnvironment."""
    return [each if isinstance(each, str) else each.get("name", "") for each in arguments.get("tools", {}).values()]


class ToolEnvironment:
    """Answers the first call of a tool in each turn; a turn without one is compared with the column `answer`."""

    def __init__(
        self, tools: Mapping[str, str | Mapping[str, Any]], *, template: str = "\n{}\n", max_chars: int = 200
    ) -> None:
        """Name tools by their tags: {"calc": "calculator"}. An answer is cut after `max_chars` characters."""
        self._tools = {tag: load_tool(given) for tag, given in tools.items()}
        self._template, self._max_chars = template, max_chars
        self._call = re.compile(rf"<({'|'.join(map(re.escape, self._tools))})>(.*?)</\1>", re.DOTALL)
        self.stop_strings = tuple(f"</{tag}>" for tag in self._tools)
        self.is_deterministic = all(is_deterministic for _, is_deterministic in self._tools.values())

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Begin with an empty store; the prompt is all that there is to see."""
        self._state: dict[str, Any] = {}
        self._answer: Any = options.get("answer")
        return "", {}

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer a turn."""
        if (call := self._call.search(text)) is None:
            is_text = isinstance(self._answer, str)
            reward = matching([text], [self._answer], [StopReason.EOS])[0] if is_text else 0.0
            return "", reward, True, False, {}
        try:
            answer = str(self._tools[call[1]][0](call[2], self._state))
        except (Exception, SystemExit) as error:  # a tool may raise anything
            answer = error_text(error)
        return self._template.replace("{}", answer[: self._max_chars]), 0.0, False, False, {}


def error_text(error: BaseException) -> str:
    """Return what an error says, in one line, without the addresses of objects.

    Raises ExhaustedError for one that says that this machine lacks processes, files or disk: no fault of a trajectory.
    """
    if not isinstance(error, MemoryError) and (found := exhaustion_of(error)):
        raise found from error
    return re.sub("0x[0-9a-fA-F]+", "0x", f"error: {type(error).__name__}: {' '.join(str(error)[:200].split())}")
