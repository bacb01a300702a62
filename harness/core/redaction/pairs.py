"""Pairs of a name and its value in a text: `name=value`, `"name": "value"`, `Name: value`, `--name value`."""

from __future__ import annotations

import errno
import os
import re

from .names import (
    KEYED,
    REDACTED,
    Holds,
    ends_with_service,
    holds,
    holds_secret,
    is_key_of_service,
    is_number,
    word_set,
    words_of,
)

_NAME = re.compile(r"(?<![\w.-])-{0,2}[A-Za-z_][\w.-]*")
_HINT = re.compile(r"pass|pw|secret|token|key|auth|cred|pat|cookie|jwt|webhook|bearer|sess|sig|-u$|user", re.IGNORECASE)
"""What a name of a secret holds, or an option with a user and a password."""
_ASSIGNS = re.compile(r"(?:\[\w{0,40}\])?[ \t]*:?=(?!=)>?[ \t]*")
_COLON = re.compile(r":([ \t]*)")
_AFTER_QUOTE = re.compile(r"\\*[\"']\s*([:,])\s*")
_BRACKET = re.compile(r"[\[\]{}]")
_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_OPENING = re.compile(r"('\"'\"|\\*)([\"'])")
"""A quote, one with backslashes, and `'"'"'`, which is how a shell's quoted word spells one."""
_CLOSING = {'"': re.compile(r"(?:[^\"\\]|\\.)*(?=\")", re.DOTALL), "'": re.compile(r"[^']*(?=')")}
_UNQUOTED = {
    "query": re.compile(r"[^&#\s\"'<>]*"),
    "braces": re.compile(r"[^,}\]\s]*"),
    "authorization": re.compile(r"[^\s\"']+(?:[ \t]+[^\s\"']+)?"),
    "cookie": re.compile(r"[^\"'\n]*"),
    "word": re.compile(r"(?:\\.|\S)*"),
    "element": re.compile(r"[^<]*"),
    '"': re.compile(r"[^\"\n]*"),
    "'": re.compile(r"[^'\n]*"),
}
"""Where a value ends that has no quotes of its own, by what it stands in: a quote that opens before its name, say."""
_BLOCK = re.compile(r"[|>][+-]?\d?[ \t]*(?:\n[ \t]+[^\n]*)+")
"""A value of YAML on lines of its own."""
_OF_FILE = re.compile(
    "|".join(re.escape(os.strerror(number)) for number in sorted(errno.errorcode))
    + r"|(?:already|cannot|does|has|is|no|not|was) [a-z]"
)
"""Begins a message about a file, after its path and a colon: /etc/passwd: File exists."""
_OFTEN_COUNTED = ("token", "tokens", "key", "pass")
"""Before a colon and a number these are prose: token: 5."""
_IN_PROSE = ("token", "tokens")
_WORD_OF_PROSE = re.compile(r"[a-z]{1,12}")
"""After such a word and a colon: 8 tokens: with 16, no prompt would share one."""
_PLACEHOLDER = re.compile(r"VALUE(?= --)")
"""In a remedy, before the next option: `--set headers.cookie=VALUE --set judge.token=VALUE`."""
USER_OPTIONS = frozenset({"-u", "-U", "--user", "--proxy-user"})
_USER = re.compile(r"(?!\d+:\d+$)[^:/\s]+:[^/\s].*", re.DOTALL)
_FLAG = word_set(
    "add allow ask disable enable has ignore is no print require return save show skip trust use with without"
)
_NEEDS_VALUE = word_set("apikey key pass passphrase password passwd pwd secret token")


def redact_pairs(text: str) -> str:
    """A text without the values of pairs whose name is that of a secret."""
    parts: list[str] = []
    at = 0
    for match in _NAME.finditer(text):
        if match.start() < at or not (_HINT.search(match[0]) or KEYED.search(match[0])):
            continue
        found = _secret_after(text, match.start(), match.end())
        if found is not None:
            parts += [text[at : found[0]], REDACTED]
            at = found[1]
    return "".join([*parts, text[at:]])


def is_user_and_password(option: str, value: str) -> bool:
    """Return whether a value is `user:password` by its option: -u bob:pw; not 1000:1000."""
    return option in USER_OPTIONS and _USER.fullmatch(value) is not None


def is_value_of(option: str, word: str) -> bool:
    """Return whether the word after an option is its value, and a secret.

    A word with dashes is one after an option that makes no sense without a value: --password --begins-with-dashes.
    """
    if holds(option, is_option=True) is Holds.NO_SECRET:
        return is_key_of_service(option, word)
    if word.startswith("--"):
        words = words_of(option)
        if "=" in word or word == "--" or words[0] in _FLAG or words[-1] not in _NEEDS_VALUE:
            return False
    return holds_secret(option, word, is_option=True)


def _secret_after(text: str, begin: int, end: int) -> tuple[int, int] | None:
    """(first, behind the last) of the secret that follows the name at `begin`; None where none does."""
    name, before = text[begin:end], text[begin - 1 : begin]
    quote = before if before in ('"', "'") else ""
    is_query, is_dashed = before in ("?", "&"), name.startswith("-")
    is_option = is_dashed or is_query or name.isupper()
    held = holds(name, is_option=is_option, is_query=is_query)
    if held is Holds.NO_SECRET and name not in USER_OPTIONS and not ends_with_service(name):
        return None
    last = words_of(name)[-1] if words_of(name) else ""
    form, is_next_word, is_colon = (
        "query" if is_query else quote or (last if last in _UNQUOTED else "word"),
        False,
        False,
    )
    if quote and (after := _AFTER_QUOTE.match(text, end)) is not None:
        if (after[1] == ",") != is_dashed:  # {"token": "x"}, ["--token", "x"]
            return None
        form = "braces"
    elif before == "<" and text[end : end + 1] == ">":  # <password>x</password>
        element = _extent(text, end + 1, "element")
        return element if held is Holds.SECRET and not text.startswith(REDACTED, end + 1) else None
    elif (after := _ASSIGNS.match(text, end)) is None:
        if is_dashed and (after := _BLANK.match(text, end)) is not None:
            is_next_word = True
        elif is_query or (after := _COLON.match(text, end)) is None:
            return None
        else:
            if before == "/" and _OF_FILE.match(text, after.end()):
                return None
            is_colon, is_in_braces = True, before in ("{", ",")
            is_header = ("-" in name and "." not in name) or last == "authorization"
            if not (after[1] or is_header or is_in_braces):  # auth.py:12
                return None
            form = "braces" if is_in_braces else form
    if text[after.end() : after.end() + 1] in ("{", "[") and held in (Holds.NO_SECRET, Holds.PERHAPS):
        return None
    start, behind = _extent(text, after.end(), form)
    value = text[start:behind]
    if (
        value.startswith(REDACTED)
        or _PLACEHOLDER.match(value)
        or (is_colon and last in _OFTEN_COUNTED and is_number(value))
        or (is_colon and last in _IN_PROSE and _WORD_OF_PROSE.fullmatch(value))
    ):
        return None
    if is_next_word:
        is_secret = is_value_of(name, value) or is_user_and_password(name, value)
    else:
        is_secret = holds_secret(name, value, is_option=is_option, is_query=is_query)
    return (start, behind) if is_secret else None


def _extent(text: str, at: int, form: str) -> tuple[int, int]:
    """(first, behind the last) of a value: what its quotes or brackets hold, else as far as its form says.

    What is not closed reaches to the end.
    """
    if text[at : at + 1] in ("{", "["):
        depth = 0
        for bracket in _BRACKET.finditer(text, at):
            depth += 1 if bracket[0] in "{[" else -1
            if not depth:
                return at, bracket.end()
        return at, len(text)
    block = _BLOCK.match(text, at)
    if block is not None:
        return at, block.end()
    opening = _OPENING.match(text, at)
    if opening is not None and opening[2] != form:
        start = opening.end()
        if opening[1]:
            behind = text.find(opening[0], start)
        else:
            closing = _CLOSING[opening[2]].match(text, start)
            behind = closing.end() if closing is not None else -1
        if behind < 0:
            behind = text.find("\n", start)
        return start, behind if behind >= 0 else len(text)
    found = _UNQUOTED[form].match(text, at)
    return at, found.end() if found is not None else at
