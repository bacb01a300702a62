"""The tools: what they answer, and that a program can compute and nothing else."""

import time
from typing import Any

import pytest

from rlcore.data.tools import ToolEnvironment, calculator, error_text, python, store


@pytest.mark.parametrize(
    ("text", "value"),
    [("1+2", "3"), (" (3 - 4) * 5 ", "-5"), ("7//2", "3"), ("7/2", "3.5"), ("-7%3", "2")],
)
def test_a_calculator_calculates(text: str, value: str) -> None:
    assert calculator(text, {}) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "__import__('os')",
        "2**3",
        "1j",
        "1/0",
        "9" * 200,
        "[1]*9",
        "'a'*9",
        "+".join("1" * 200),
        "*".join(["9" * 20] * 10),
        "(" * 200,
    ],
)
def test_a_calculator_refuses_what_is_no_small_expression(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError, ArithmeticError, MemoryError)):
        calculator(text, {})


def test_a_store_keeps_values_of_its_trajectory() -> None:
    state: dict[str, Any] = {}
    assert [store(text, state) for text in ("a = 1", "b=2=3", "a")] == ["1", "2=3", "1"]
    with pytest.raises(KeyError):
        store("a", {})


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("print(6 * 7)", "42"),
        ("import json, math; print(json.dumps([math.pi]))", "[3.141592653589793]"),
        ("import random; print(random.random(), {'a', 'b', 'c'})", None),
        ("1 / 0", "error: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "error: SystemExit: 3"),
        ("x = [0] * 10**9", "error: MemoryError:"),
        ("open('/etc/passwd')", "error: PermissionError: [Errno 1] Operation not permitted: '/etc/passwd'"),
        ("import os; os.remove('/nothing')", "error: PermissionError: [Errno 1] Operation not permitted: '/nothing'"),
        ("import os; os.fork()", "error: PermissionError: [Errno 1] Operation not permitted"),
        ("import os; os.kill(os.getppid(), 9)", "error: PermissionError: [Errno 1] Operation not permitted"),
        ("import time; time.sleep(60)", "error: PermissionError: [Errno 1] Operation not permitted"),
        ("import socket", "error: ModuleNotFoundError: No module named 'socket'"),
        ("import ctypes; ctypes.string_at(0)", "error: ended by status -11 within 1 s of processor time"),
    ],
)
def test_a_program_computes_and_nothing_else(text: str, answer: str | None) -> None:
    assert python(text, {}) == (python(text, {}) if answer is None else answer)


def test_a_program_without_an_end_is_ended_by_its_processor_time() -> None:
    assert python("while True: pass", {}) == "error: ended by status -24 within 1 s of processor time"


def test_a_program_that_writes_without_end_is_cut() -> None:
    began = time.monotonic()
    said = python("while True: print('x')", {})
    assert said[:9] == "x\nx\nx\nx\nx" and 60_000 < len(said) < 70_000 and said == python("while True: print('x')", {})
    assert time.monotonic() - began < 10


def test_an_address_is_no_part_of_an_error() -> None:
    assert error_text(ValueError(f"{object()}\n is odd")) == "error: ValueError: <object object at 0x> is odd"


def test_several_tools_answer_in_one_environment() -> None:
    environment = ToolEnvironment(
        {"calc": "calculator", "kv": "store", "py": {"name": "python", "cpu_s": 2}}, template="[{}]", max_chars=5
    )
    assert environment.stop_strings == ("</calc>", "</kv>", "</py>")
    environment.reset(seed=0, options={"answer": "12"})
    assert environment.step("so <calc>3*4</calc>") == ("[12]", 0.0, False, False, {})
    assert environment.step("<kv>a=12</kv>")[0] == "[12]"
    assert environment.step("<kv>b</kv>")[0] == "[error]"
    assert environment.step("<py>print(\n'abcdefgh')</py>")[0] == "[abcde]"
    assert environment.step("12") == ("", 1.0, True, False, {})
    environment.reset(seed=0, options={})
    assert environment.step("<kv>a</kv>")[0] == "[error]", "another trajectory"
    assert environment.step("<calc>1</kv>") == ("", 0.0, True, False, {})
