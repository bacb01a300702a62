"""Redaction takes time in proportion to a text, whatever the text: no pattern goes back and forth over it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PIECES = (
    *(
        "a",
        "aB3",
        "sk-",
        "eyJ",
        "eyJ-",
        "eyJa.",
        "://",
        "://a:",
        "a:b@",
        "@",
        "'",
        '"',
        "\\",
        '\\"',
        "=",
        "a=",
        "{",
        "[",
    ),
    *("-----BEGIN PRIVATE KEY-----", "--token ", "--token\n", "token=", "key: ", "&sig=", "Bearer ", "\n", " "),
    *("hf_", "a/", "a ", '"key": "a', '"key": {', "-u a:", "1", "token='1", "$(", "password:", ",key:a"),
    *("--tokens 1 ", "--use-token a ", "--key\\ ", "'--key',", "key=[1", "tokens: [", "\"'", "--token '--a=\" "),
    *("['--token', ", "'\"'\"'", "token='\"'\"'", "key[", "VALUE --", "${A", "<a", "a.", "a-"),
)
RUNS = ("eyJ-", "eyJa.", "://a:", "a:b@", '"key": {', "key=[1", "'", '\\"', "--token ", "-----BEGIN PRIVATE KEY-----")
HOSTILE_PROGRAM = """
import sys
from harness.bits.redaction import redact_argv, redact_text
pieces, runs = eval(sys.argv[1])
for piece in pieces:
    redact_argv([piece * (50_000 // len(piece))])
for piece in runs:
    redact_text(piece * (1_000_000 // len(piece)))
word = "a" * 10_000_000
assert redact_argv([word]) == (word,)
"""


@pytest.mark.full
def test_a_hostile_word_is_no_standstill() -> None:
    """Of quadratic work one of the runs alone takes minutes; the limit is for all of them together."""
    command = [sys.executable, "-c", HOSTILE_PROGRAM, repr((PIECES, RUNS))]
    done = subprocess.run(command, cwd=ROOT, timeout=300, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
