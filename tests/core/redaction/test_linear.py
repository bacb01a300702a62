"""Redaction takes time in proportion to a text, whatever the text: no pattern goes back and forth over it."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.redaction.shapes import SERVICES

ROOT = Path(__file__).resolve().parents[3]
pattern_parser: Any = importlib.import_module("re._parser")  # typeshed has it under the name that is deprecated
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
    *(
        "-----BEGIN PRIVATE KEY-----",
        "--token ",
        "--token\n",
        "token=",
        "key: ",
        "&sig=",
        "Bearer ",
        "pypi-",
        "\n",
        " ",
    ),
    *("hf_", "a/", "a ", '"key": "a', '"key": {', "-u a:", "-u [", "1", "token='1", "$(", "password:", ",key:a"),
    *(
        "--tokens 1 ",
        "--use-token a ",
        "--key\\ ",
        "'--key',",
        "key=[1",
        "tokens: [",
        "\"'",
        "--token '--a=\" ",
        "a.",
        "a-",
    ),
    *("['a', ", "['a',", "['--token', ", "name: HF_TOKEN\nvalue: ", "machine a login a ", "%3A", "password: |\n  a\n"),
    *(
        "<password>",
        "'\"'\"'",
        "token='\"'\"'",
        "key[",
        "curl -b ",
        "env A_KEY=",
        "password is ",
        "PuTTY-User-Key-File-2",
    ),
    *("secret_", "sgp_", "t1.", "VALUE --", "${A", "<a"),
)
RUNS = (
    "eyJ-",
    "eyJa.",
    "://a:",
    "pypi-",
    "a:b@",
    '"key": {',
    "key=[1",
    "'",
    '\\"',
    "--token ",
    "-----BEGIN PRIVATE KEY-----",
)
MAX_STEPS = 400
"""How often a part of a service's pattern may repeat that is not its end: the steps that a start may cost in vain."""


def repeats_in_vain(pattern: str) -> list[int]:
    """How often parts of a pattern may repeat after which it can fail, those beyond MAX_STEPS."""
    found: list[int] = []

    def walk(parts: Any, is_last: bool) -> None:
        for number, (kind, what) in enumerate(parts):
            ends = is_last and all(_is_optional(part) for part in parts[number + 1 :])
            match str(kind):
                case "MAX_REPEAT" | "MIN_REPEAT":
                    _, most, inner = what
                    if most > MAX_STEPS and not ends:
                        found.append(int(most))
                    walk(inner, is_last=False)
                case "SUBPATTERN":
                    walk(what[-1], ends)
                case "BRANCH":
                    for branch in what[1]:
                        walk(branch, ends)

    walk(pattern_parser.parse(pattern), is_last=True)
    return found


def _is_optional(part: Any) -> bool:
    kind, what = part
    return str(kind) in ("MAX_REPEAT", "MIN_REPEAT") and what[0] == 0


@pytest.mark.parametrize(("whose", "pattern"), SERVICES, ids=lambda text: text[:20])
def test_a_pattern_of_a_service_takes_steps_in_proportion_to_the_text(whose: str, pattern: str) -> None:
    """Whatever the text: from each of its places a pattern goes at most MAX_STEPS on before it fails."""
    assert repeats_in_vain(pattern) == [], whose


def test_a_pattern_that_would_take_squares_of_them_is_found() -> None:
    for pattern in (
        r"secret_[\w-]+_[a-f0-9]{32}",
        r"sgp_(?:[\w-]+_)?[a-f0-9]{40}",
        r"a(?:b|c\w*)d",
        r"(?:a+b?)+",
        r"x\w*(?!y)",
    ):
        assert repeats_in_vain(pattern), pattern
    for pattern in (r"hf_\w{16,}", r"a(?:b|c\w*)", r"a\w{20,}={0,2}", r"a\w{1,400}b"):
        assert not repeats_in_vain(pattern), pattern


HOSTILE_PROGRAM = """
import sys
from harness.core.redaction import redact_argv, redact_text
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
