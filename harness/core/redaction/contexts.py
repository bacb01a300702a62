"""Secrets that follow certain words, without `name=value`: .netrc, variables of containers, prose, encoded URLs.

machine host login bob password X       - {name: HF_TOKEN, value: X}
Incorrect API key provided: X           ?next=https%3A%2F%2Fbob%3AX%40host
"""

import re
from collections.abc import Callable

from .names import REDACTED, is_secret_name

_NETRC = re.compile(r"(\bmachine\s{1,20}\S{1,300}\s{1,20}login\s{1,20}\S{1,300}\s{1,20}password\s{1,20})\S+")
_NAMED = re.compile(
    r"(\b(?:name|key|variable)[\"']?:[ \t]{0,20}[\"']?([\w.-]{1,100})[\"']?,?\s{1,50}[\"']?value[\"']?:[ \t]{0,20})"
    r"(\"[^\"\n]*\"|'[^'\n]*'|[^\n,}]+)"
)
"""A variable of a container, in YAML or JSON."""
_PROSE = re.compile(
    r"(\b(?i:password|passphrase|passwd|secret|api[ _-]?key|access[ _-]?key)"
    r"(?:[ \t](?i:is|was|provided|given|supplied|used)){0,2}:?[ \t][\"'`]?)([^\s\"'`]{10,400})"
)
_RUN = re.compile(r"[\w.~+%-]{8,}")
_END = ".,;:!?)"


def redact_contexts(text: str, redact: Callable[[str], str]) -> str:
    """Return a text without such secrets; `redact` is applied to what a URL holds encoded."""
    if "machine" in text:
        text = _NETRC.sub(rf"\1{REDACTED}", text)
    if "value" in text:
        text = _NAMED.sub(lambda match: f"{match[1]}{REDACTED}" if is_secret_name(match[2]) else match[0], text)
    if "%3" in text:
        text = _RUN.sub(lambda match: _redact_encoded(match[0], redact), text)
    return _PROSE.sub(_redact_prose, text)


def looks_random(word: str) -> bool:
    """Return whether a word has digits, and letters of both cases: few words of a language or of code do."""
    return any(map(str.isdigit, word)) and any(map(str.isupper, word)) and any(map(str.islower, word))


def _redact_prose(match: "re.Match[str]") -> str:
    word = match[2].rstrip(_END)
    return f"{match[1]}{REDACTED}{match[2][len(word) :]}" if looks_random(word) else match[0]


def _redact_encoded(run: str, redact: Callable[[str], str]) -> str:
    if "%3" not in run:
        return run
    from urllib.parse import unquote  # few texts need it

    decoded = unquote(run)
    return run if redact(decoded) == decoded else REDACTED
