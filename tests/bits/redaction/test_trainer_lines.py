"""Command lines of trainers hold no secret, and nothing of them is redacted: their identity is what was typed."""

import json
import shlex

import pytest

from harness.bits.redaction import redact_argv, redact_fields, redact_text, redact_values
from harness.lab.experiment.command_spec import command_identity
from tests.bits.redaction.trainer_lines import LINES


def test_there_are_enough_of_them() -> None:
    assert len(LINES) >= 30


@pytest.mark.parametrize("line", LINES.values(), ids=list(LINES))
def test_nothing_of_a_trainers_command_line_is_redacted(line: str) -> None:
    argv = tuple(shlex.split(line))
    assert redact_argv(argv) == argv
    assert redact_argv(("sh", "-c", line)) == ("sh", "-c", line)
    assert redact_text(line) == line, "in an error message"
    assert redact_text(f"cannot start {list(argv)!r}") == f"cannot start {list(argv)!r}"
    assert redact_values({"command": list(argv), "line": line}) == {"command": list(argv), "line": line}
    assert redact_text(json.dumps(list(argv))) == json.dumps(list(argv))
    identity = command_identity(argv)
    assert redact_fields(identity) == identity
