"""Text and command lines without secrets: each may hold the other, in JSON, in a line of a shell, in a list of words.

A bare word of 40 hexadecimal digits is a key of Weights & Biases, unless the word before it, or its name, is one of
commits and digests: `--revision`, `checkout`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from os.path import basename
from typing import Any, TypeVar

from .contexts import redact_contexts
from .names import REDACTED, Holds, holds, holds_secret, is_number, is_secret_name, word_set, words_of
from .pairs import is_user_and_password, is_value_of, redact_pairs
from .shapes import redact_shapes
from .switch import keeps_secrets

_Words = TypeVar("_Words", str, tuple[str, ...])
MAX_ROUNDS = 8
_QUOTE_IN_QUOTES = "'\"'\"'"
_ITEM = re.compile(r"'((?:[^'\\\n]|\\.)*)'|\"((?:[^\"\\\n]|\\.)*)\"")
_LIST = re.compile(rf"\[(?:(?:{_ITEM.pattern})(?:, ?)?){{2,2000}}\]")
"""Words as Python prints a list of them: ran ['mysql', '-p', 'x']."""
_ESCAPED = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_OF_COMMANDS = re.compile(
    r"(?<![\w.-])(?:aws|curl|docker|env|hf|huggingface-cli|login|mariadb|mongo\w{0,9}|mysql\w{0,9}|ngrok|redis-cli|setenv"
    r"|set -\w{1,3}|sshpass|twine|vault|wandb)\s"
)
"""Begins words of a command in a line of text: a program that takes a secret at a fixed position."""
_LINE_END = re.compile(r"(?<!\\)\n|$")
_OPTION = re.compile(r"--?[A-Za-z][\w.+-]*")
_OPTION_BEGINS = re.compile(r"--?[A-Za-z][\w.+-]*(?:=|$)")
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
_BARE_NAME = re.compile(r"[A-Za-z]+(?:_[A-Za-z0-9]+)+|login|authtoken")
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


def redact_text(text: str, name: str = "") -> str:
    """Return a text without secrets, by their shapes and by the names before them; to redact it again changes nothing.

    `name` is the dotted name of what holds it; it counts where the text is JSON.
    """
    if keeps_secrets():
        return text
    return settled(lambda each: _redact_once(each, name), text)


def settled(redact: Callable[[_Words], _Words], words: _Words) -> _Words:
    """Redact again what was redacted, until nothing changes: what is taken out may bring a name to a value."""
    for _ in range(MAX_ROUNDS):
        before, words = words, redact(words)
        if words == before:
            break
    return words


def _redact_once(text: str, name: str) -> str:
    if text[:1] in ("{", "[", '"'):
        try:
            parsed = json.loads(text, object_pairs_hook=_unique)
            redacted = redact_values(parsed, name)
            return text if redacted == parsed else json.dumps(redacted, ensure_ascii=False)
        except (ValueError, RecursionError):  # no JSON, or a mapping that says a name twice
            pass
    text = _redact_spelled(text)
    return text if _QUOTE_IN_QUOTES not in text else _redact_quoted(text)


def _redact_spelled(text: str) -> str:
    text = _redact_lists(redact_shapes(text))
    return _redact_commands(redact_pairs(redact_contexts(text, _redact_decoded)))


def _redact_quoted(text: str) -> str:
    """A line of a shell with quotes in its quoted words, without the secrets of those."""
    try:
        words = shlex.split(text)
        redacted = redact_words(words)
        return text if redacted == words else shlex.join(redacted)
    except ValueError:  # no whole line of a shell
        unquoted = text.replace(_QUOTE_IN_QUOTES, "'")
        plain = _redact_spelled(unquoted)
        return text if plain == unquoted else plain


def _redact_decoded(text: str) -> str:
    return redact_pairs(redact_shapes(text))


def _redact_lists(text: str) -> str:
    """A text without the secrets of command lines that it quotes as lists of words."""
    if "['" not in text and '["' not in text:
        return text
    return _LIST.sub(lambda match: _redact_list(match[0]), text)


def _redact_list(printed: str) -> str:
    """A printed list of words, as it is where nothing of it is a secret."""
    found = [match[1] if match[1] is not None else match[2] for match in _ITEM.finditer(printed)]
    words = [_ESCAPED.sub(lambda match: _ESCAPES.get(match[1], match[1]), word) for word in found]
    redacted = redact_words(words) if is_command_line(words) else words
    return printed if redacted == words else repr(redacted)


def _redact_commands(text: str) -> str:
    """A text without the secrets of its lines that name a program which takes some."""
    parts, at = [], 0
    while (begin := _OF_COMMANDS.search(text, at)) is not None:
        end = _LINE_END.search(text, begin.end())
        behind = len(text) if end is None else end.start()
        parts += [text[at : begin.start()], redact_line(text[begin.start() : behind])]
        at = behind
    return "".join([*parts, text[at:]])


def is_command_line(words: Sequence[Any]) -> bool:
    """Return whether words are those of a command line: one is an option, or a program that takes secrets."""
    if len(words) < 2 or not all(isinstance(word, str) for word in words):
        return False
    return any(_OPTION_BEGINS.match(word) or _OF_COMMANDS.match(f"{basename(word[-100:])} ") for word in words)


def redact_values(value: Any, name: str = "") -> Any:
    """Return plain values without those that are secrets: texts and numbers, in mappings and lists of any depth.

    `name` is the dotted name of what holds them.
    """
    if keeps_secrets():
        return value
    if isinstance(value, Mapping):
        named = next((value[key] for key in ("name", "key", "variable") if isinstance(value.get(key), str)), "")
        is_variable = "value" in value and is_secret_name(named)  # {"name": "HF_TOKEN", "value": "x"}
        return {
            redact_text(key) if isinstance(key, str) else key: redact_values(
                inner, named if is_variable and key == "value" else f"{name}.{key}" if name else str(key)
            )
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        if is_command_line(value):
            value = redact_words(value)
        return [redact_values(inner, name) for inner in value]
    if isinstance(value, str):
        return REDACTED if holds_secret(name, value) else redact_text(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return REDACTED if holds_secret(name, repr(value)) else value
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON; ValueError where a name is there twice, and one of its values would not be seen."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without secrets, word for word: `--token=X`, `--token X`, `HF_TOKEN=X`, and their like."""
    if keeps_secrets():
        return tuple(argv)
    return settled(lambda words: tuple(_redact(words, 0)), tuple(argv))


def redact_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line in a text or a configuration without secrets."""
    return _redact(words, _MAX_DEPTH - 1)


def redact_line(line: str) -> str:
    """Return a line of a shell in a text without secrets; its words are as they were where none is one."""
    return _redact_shell(line, _MAX_DEPTH - 1)


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
    if option == "-b" and not has_value and "curl" in programs and "=" in word:  # cookies
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
    """A line of a shell without secrets; other words stay as they are spelled."""
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

    def of(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[1]
        return match[2] if match[2] is not None else re.sub(r"\\([\"\\$`])", r"\1", match[3])

    return _QUOTES.sub(of, raw)
