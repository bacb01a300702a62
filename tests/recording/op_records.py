"""Records a few lines of a program operation by operation, for tests."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from harness.recording.operations import OpLog, OpMode
from harness.trace.ops import Operation, OpRecord, read_ops

ROOT = Path(__file__).resolve().parents[2]


def record(program: Callable[[OpMode], object]) -> OpRecord:
    """What `program` does, as it is read back; the record has to be whole."""
    found = record_until_the_end(program)
    assert found.problem == ""
    return found


def record_until_the_end(program: Callable[[OpMode], object], said: list[str] | None = None) -> OpRecord:
    """The same, also of a record that ended early; what was said about it is added to `said`."""
    say = (said if said is not None else []).append
    with TemporaryDirectory(prefix="rlh-ops-") as directory:
        with OpMode(OpLog(Path(directory), rank=0, step=0, say=say), str(ROOT)) as mode:
            program(mode)
        found = read_ops(Path(directory), 0, 0)
    assert found is not None
    return found


def only(found: OpRecord, name: str) -> Operation:
    """The one operation of this name, without its namespace and overload."""
    (operation,) = named(found, name)
    return operation


def named(found: OpRecord, name: str) -> list[Operation]:
    """The operations of this name, in order."""
    return [each for each in found.operations if each.name.split(".")[1] == name]


def line_of(function: Callable[..., object], text: str) -> str:
    """Where in `function` the line stands that holds `text`, as records spell it."""
    code = function.__code__
    path = Path(code.co_filename)
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if number >= code.co_firstlineno and text in line:
            return f"{path.relative_to(ROOT)}:{number} {code.co_name}"
    raise AssertionError(f"no {text!r} in {code.co_name}")
