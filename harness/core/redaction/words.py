"""The words of a command line without secrets: options and their values, settings, headers, lines of a shell.

A bare word of 40 hexadecimal digits is a key of Weights & Biases, unless the word before it, or its name, is one of
commits and digests: `--revision`, `checkout`.
"""

import re
import shlex
from collections.abc import Collection, Sequence
from os.path import basename

from .names import REDACTED, Holds, holds, holds_secret, is_number, word_set, words_of
from .shapes import redact_shapes
from .text import is_user_and_password, is_value_of, redact_text, settled

_OPTION = re.compile(r"--?[A-Za-z][\w.+-]*")
_ASSIGNMENT = re.compile(r"([-+~]{0,2}[A-Za-z_][\w.+-]*)=(.*)", re.DOTALL)
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*)(:\s*)(.*)", re.DOTALL)
_HEADER_OPTIONS = frozenset({"-H", "--header", "--proxy-header"})
_HEX = re.compile(r"[0-9a-f]{40}|[0-9A-F]{40}")
_OF_COMMITS = word_set(
    "bad base blob branch checkout checksum cherry commit digest fingerprint good hash head id merge onto pick pin"
    " rebase ref reset rev revert revision sha sha1 show tag tree uuid version"
)
_WITH_PASSWORD = word_set("login mariadb mongo mongodump mongosh mysql mysqladmin mysqldump mysqlimport sshpass twine")
"""Words of a command line whose -p is a password; `login` is that of docker and az."""
_WITHOUT_PASSWORD = word_set("cp git mkdir ps py.test pytest rsync scp ssh tar unzip")
_OF_REDIS = "redis-cli"
_BARE_NAME = re.compile(r"[A-Za-z]+(?:_[A-Za-z0-9]+)+|login")
"""A name that stands by itself before its value: aws configure set aws_secret_access_key X."""
_NO_PASSWORD = re.compile(r"[a-z][a-z_-]*|no:.*|\d+(?::\d+)*(?:/\w+)?|[\w.-]*\.[A-Za-z]\w*|.*/.*", re.DOTALL)
_PLAIN_WORD = re.compile(r"[a-z][a-z_-]*|(?![A-Za-z0-9+/]{40}$).*/.*|[\w-]+\.[a-z]{1,5}\d?", re.DOTALL)
_PIECE = re.compile(
    r"(?P<end>[;&|()\n]+)|(?P<blank>(?:[^\S\n]|\\\n)+)"
    r"|(?P<word>(?:[^\s;&|()'\"\\]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\")+)|(?P<other>.)",
    re.DOTALL,
)
_QUOTES = re.compile(r"\\(.)|'([^']*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_MAX_DEPTH = 4
"""Lines of a shell and settings within words; what is deeper is text."""


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without secrets, word for word: `--token=X`, `--token X`, `HF_TOKEN=X`, and their like."""
    return settled(lambda words: tuple(_redact(words, 0)), tuple(argv))


def _redact(argv: Sequence[str], depth: int) -> list[str]:
    parts: list[str] = []
    programs = {basename(word) for word in argv}
    option, has_value, previous = "", False, ""
    for word in argv:
        if option and _is_its_value(option, word, programs, has_value=has_value):
            parts.append(REDACTED)
            has_value = True
        else:
            if option == "--metric" and not has_value:  # NAME=REGEX: its name says nothing of what follows
                parts.append(redact_shapes(word))
            elif option in _HEADER_OPTIONS and not has_value and _HEADER.fullmatch(word):
                parts.append(_redact_header(word))
            else:
                parts.append(_redact_word(word, {*words_of(option), *words_of(previous)}, programs, depth))
            is_first = bool(option) and not has_value
            if _OPTION.fullmatch(word):
                option, has_value = word, False
            elif _BARE_NAME.fullmatch(word) and (not is_first or word.isupper()):
                option, has_value = "token" if word == "login" else word, True
            else:
                option, has_value = option if is_first and not _ASSIGNMENT.fullmatch(word) else "", is_first
        previous = word
    return parts


def _is_its_value(option: str, word: str, programs: Collection[str], *, has_value: bool) -> bool:
    """Whether a word belongs to the option before it, and is a secret; `has_value`: the option has one already."""
    if option == "-a" and not has_value and _OF_REDIS in programs:
        return True
    if option == "-p" and not has_value:
        return not word.startswith("-") and _is_password(word, programs)
    if not has_value:
        return is_user_and_password(option, word) or is_value_of(option, word)
    last = words_of(option)[-1]
    if word.startswith("-") or _ASSIGNMENT.fullmatch(word) or holds(option, is_option=True) is Holds.NO_SECRET:
        return False
    is_plain = _PLAIN_WORD.fullmatch(word) is not None or is_number(word)
    return is_value_of(option, word) and (not is_plain or (last.endswith("s") and last != "pass"))


def _is_password(word: str, programs: Collection[str]) -> bool:
    """Whether the value of -p is a password, by the words of the command line."""
    if not _WITH_PASSWORD.isdisjoint(programs):
        return True
    return _WITHOUT_PASSWORD.isdisjoint(programs) and not is_number(word) and not _NO_PASSWORD.fullmatch(word)


def _redact_word(word: str, context: Collection[str], programs: Collection[str], depth: int) -> str:
    """One word without secrets; `context` are the words of what is before it."""
    if _HEX.fullmatch(word):
        return REDACTED if _OF_COMMITS.isdisjoint(context) and "git" not in programs else word
    assigned = _ASSIGNMENT.fullmatch(word) if depth < _MAX_DEPTH else None
    if assigned is not None:
        name, value = assigned.groups()
        is_option = name.startswith("-") or name.isupper()
        if holds_secret(name, value, is_option=is_option) or is_user_and_password(name, value):
            return f"{name}={REDACTED}"
        if name in _HEADER_OPTIONS:
            return f"{name}={_redact_header(value)}"
        if name == "--metric":
            return f"{name}={redact_shapes(value)}"
        return f"{name}={_redact_word(value, words_of(name), programs, depth + 1)}"
    if word.startswith("-p") and len(word) > 2 and not _WITH_PASSWORD.isdisjoint(programs):
        return f"-p{REDACTED}"
    if word.startswith("-u") and is_user_and_password("-u", word[2:]):
        return f"-u{REDACTED}"
    if _HEADER.fullmatch(word):
        return _redact_header(word)
    if depth < _MAX_DEPTH and any(character.isspace() for character in word) and not word.startswith(("{", "[")):
        return redact_text(_redact_shell(redact_shapes(word), depth + 1))
    return redact_text(word)


def _redact_header(word: str) -> str:
    """`Authorization: token X` without what follows the name, where that is the name of a secret."""
    header = _HEADER.fullmatch(word)
    if header is not None:
        name, colon, value = header.groups()
        is_name = "-" in name or name.lower() in ("authorization", "cookie")
        if is_name and holds_secret(name, value, is_option=True):
            return f"{name}{colon}{REDACTED}"
    return redact_text(word)


def _redact_shell(text: str, depth: int) -> str:
    """A line of a shell without secrets: what is none stays as it is spelled."""
    parts: list[str] = []
    words: list[tuple[int, str]] = []

    def end_command() -> None:
        for (at, value), redacted in zip(words, _redact([value for _, value in words], depth)):  # noqa: B905
            if redacted != value:
                parts[at] = shlex.quote(redacted)
        words.clear()

    for piece in _PIECE.finditer(text):
        if piece.lastgroup == "end":
            end_command()
        elif piece.lastgroup == "word":
            words.append((len(parts), _unquoted(piece[0])))
        parts.append(piece[0])
    end_command()
    return "".join(parts)


def _unquoted(raw: str) -> str:
    """A word as a shell hands it on."""

    def of(match: "re.Match[str]") -> str:
        if match[1] is not None:
            return match[1]
        return match[2] if match[2] is not None else re.sub(r"\\([\"\\$`])", r"\1", match[3])

    return _QUOTES.sub(of, raw)
