"""Remove secrets from every word that leaves a process: traces, reports and error messages.

A value is hidden whose name looks like that of a key, token, password, secret, pin or one-time code, and so is what has
one of a dozen shapes, whatever it is called. Of the environment only the variables of tables are recorded at all. What
a test or a recorded program prints itself is not checked.

The standard library alone is needed, in the words of Python 3.9: the boot hook of a recorded program loads this file
where `harness` is another package.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

REDACTED = "<redacted>"
NO_REDACT = "RLHARNESS_NO_REDACT"
"""`1`: secrets stay. The command line sets it for --no-redact; the processes that a command starts inherit it."""


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SECRETS = _word_set(
    "password passwords passwd passphrase passphrases passcode pwd secret secrets credential credentials cred creds"
    " apikey apikeys auth oauth authorization cookie cookies jwt bearer webhook"
)
_LAST = _word_set("pin pins otp totp pat pw session")
"""Secrets at the end of a name: --pin, not pin_memory."""
_GLUED = re.compile(r"(?:password|passwd|passphrase|secret|credential|token|apikey)s?$")
"""PGPASSWORD, hftoken."""
_KEYS = _word_set("key keys token tokens pass")
_CODES = _word_set("auth backup mfa otp recovery security time verification")
"""Before `code`: one_time_code."""
_HARMLESS = _word_set(
    "additional answer assistant audio backward bad batch boi bos by cache chosen class cls column columns completion"
    " config content context cut data dataset decoder dict draft dummy embedding encoder end env environment eod eoi"
    " eom eos eot eval every example field first fn forced foreign forward function gen generate generated generation"
    " grad gradient ground group gt hash id ignore image images index initializer input item json label last lookup"
    " loss map mask max mean message messages meta metadata metric metrics microbatch min missing mm modal model"
    " modifier module multi n name new next num number of one optimizer order out output pad parameter partition per"
    " placeholder prefill primary prng problem prompt prompts public query question random ref reference rejected"
    " response reward rewards rng row sample sampled second seed sep sequence single solution sort source special"
    " start state step stop student suppress system tag target task teacher template test text think thinking tool"
    " tools top total train training truth truths turn two unique unk user val valid validation value video vocab"
    " weight words"
)
"""Before a `key`, `token` or `pass` that names a column, a table entry, a special token, a budget or a random state."""
_ABOUT = _word_set(
    "attempts count enabled interval length limit method mode num provider required retries seconds size timeout ttl"
    " type user username"
)
"""At the end of a name that says something about a secret: RAY_AUTH_MODE, auth.timeout."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NO_SECRETS = frozenset({"", "true", "false", "null", "none", "value", "is", REDACTED})
_PLACEHOLDER = re.compile(r"VALUE(?:,VALUE)*[`:,;.]{0,2}|<[^<>\s]{1,60}>|\$\{\w{1,60}\}|\$[A-Z][A-Z_]{2,60}")
"""What stands for a value: VALUE, a special token, a variable of a shell."""
_NUMBERS = re.compile(r"[\[(\d.+-][\d\s.,_+eE%kKmMbBgGtT()\[\]-]*")
_LOWER_CASE = re.compile(r"[a-z_./\[\], -]{1,32}")

_NAME = re.compile(r"(?<![\w.-])-{0,2}[A-Za-z_][\w.-]*")
_HINT = re.compile(r"pass|pw|secret|token|key|auth|cred|pat|cookie|jwt|bearer|session|sig|pin|otp|code|hook", re.I)
_ASSIGNS = re.compile(r"(?:\[\])?('\"'\"'|\\*[\"'])?[ \t]*(?::?=(?!=)>?|(:))[ \t]*")
_NEXT_WORD = re.compile(r"\\*[\"'],[ \t]*(?=\\*[\"'])|[ \t]+(?:\\\n[ \t]*)?(?!-)")
_QUOTE = re.compile(r"'\"'\"'|\\*[\"']")
"""A quote, one with backslashes, and how a shell's quoted word spells one."""
_UNQUOTED = re.compile(r"\[[^\]]{0,400}\]?|\$?\{[^}]{0,400}\}?|[^\s,;&|\"'<>)\]}\\]*")
_HEADER = re.compile(r"[^\"'\n\\]*")
_ASSIGNMENT = re.compile(r"([-+~]{0,2}[A-Za-z_][\w.+-]*)=(.*)", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z][\w.+-]*")
_OF_PACKAGES = ("package ", "library ")
"""Before the names of installed packages and mapped libraries: `package google-auth` has a version, and no secret."""

_AT_START = r"(?<![A-Za-z0-9])"
SHAPES = (
    # (what, pattern): each linear, as what repeats without a limit ends it
    ("a private key", r"-----BEGIN[A-Z0-9 ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!----END))*(?:-----END[A-Z0-9 ]*-----)?"),
    ("user and password of a URL", r"(?<=://)[^\s\"'/?#]{1,400}@"),
    ("user and password of a proxy", r"(?<![\w./:@%+-])[A-Za-z][\w.+-]{0,63}:[^\s:/@\"']{3,256}@(?=\w)(?!sha\d)"),
    ("OpenAI, Anthropic, Stripe", _AT_START + r"(?:[spr]k-[\w-]{16,}|[spr]k_(?:live|test)_[A-Za-z0-9]{10,})"),
    ("Hugging Face", _AT_START + r"(?:hf|api_org)_[A-Za-z0-9]{16,}"),
    ("GitHub, GitLab", _AT_START + r"(?:gh[pousr]_|github_pat_|glpat-)[\w-]{16,}"),
    ("AWS", _AT_START + r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("Google", _AT_START + r"(?:AIza[\w-]{30,}|ya29\.[\w-]{16,})"),
    ("Slack", _AT_START + r"xox[a-z]-[A-Za-z0-9-]{10,}|(?<=hooks\.slack\.com/services/)[\w/-]{16,}"),
    ("NVIDIA, Weights & Biases", _AT_START + r"(?:nvapi-|wandb_v\d{1,4}_)[\w-]{16,}"),
    ("JSON web tokens", r"(?<![\w-])eyJ[\w-]{8,400}\.[\w-]{8,}(?:\.[\w-]*)?"),
    ("Bearer", r"(?i:(?<=bearer ))[A-Za-z0-9._~+/=-]{8,}"),
)
_SHAPE = re.compile("|".join(pattern for _, pattern in SHAPES))


def keeps_secrets() -> bool:
    """Return whether --no-redact leaves secrets in what this process prints and writes."""
    return os.environ.get(NO_REDACT) == "1"


@contextmanager
def secrets_kept() -> Iterator[None]:
    """Leave secrets in, here and in the processes that start within."""
    before = os.environ.get(NO_REDACT)
    os.environ[NO_REDACT] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_REDACT]
        else:
            os.environ[NO_REDACT] = before


def redact_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return names and values, without the values that are secrets; a value is text, or JSON."""
    if keeps_secrets():
        return dict(fields)
    return {
        name: value
        if name.startswith(_OF_PACKAGES)
        else REDACTED
        if is_secret(name, value)
        else redact_text(value, name)
        for name, value in fields.items()
    }


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a command line without secrets, word for word: `--token=X`, `--token X`, `HF_TOKEN=X`, and their like."""
    if keeps_secrets():
        return tuple(argv)
    words: list[str] = []
    option = ""
    for word in argv:
        assigned = _ASSIGNMENT.fullmatch(word)
        if option and not word.startswith("-") and is_secret(option, word):
            words.append(REDACTED)
        elif assigned is not None:
            name, value = assigned.groups()
            words.append(f"{name}={REDACTED if is_secret(name, value) else redact_text(value, name)}")
        else:
            words.append(redact_text(word))
        option = word if _OPTION.fullmatch(word) else ""
    return tuple(words)


def redact_values(value: Any, name: str = "") -> Any:
    """Return plain values without those that are secrets: texts and numbers, in mappings and lists of any depth.

    `name` is the dotted name of their mapping or list.
    """
    if keeps_secrets():
        return value
    if isinstance(value, Mapping):
        return {
            redact_text(key) if isinstance(key, str) else key: redact_values(
                inner, f"{name}.{key}" if name else str(key)
            )
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        if len(value) > 1 and all(isinstance(word, str) for word in value) and any(map(_OPTION.match, value)):
            value = redact_argv(value)
        return [redact_values(inner, name) for inner in value]
    if isinstance(value, str):
        return REDACTED if is_secret(name, value) else redact_text(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return REDACTED if is_secret(name, repr(value)) else value
    return value


def redact_text(text: str, name: str = "") -> str:
    """Return a text without secrets, by their shapes and by the names before them; to redact it again changes nothing.

    `name` is the dotted name of the value; it counts where the text is JSON.
    """
    if keeps_secrets():
        return text
    for _ in range(8):  # what is taken out may bring a name to a value
        before, text = text, _redact_once(text, name)
        if text == before:
            break
    return text


def is_secret(name: str, value: str) -> bool:
    """Return whether a value of this name is a secret; the value is text as a command line or JSON spells it."""
    plain = value.strip().strip("\\\"'") if len(value) <= 400 else value
    if plain.lower() in _NO_SECRETS or _PLACEHOLDER.fullmatch(plain):
        return False
    *sections, words = [found for found in map(_words_of, name.split(".")) if found] or [[""]]
    if name in ("PWD", "OLDPWD") or words[-1] in _ABOUT:
        return False
    outer = [kind for kind in map(_kind, sections) if kind]
    kind = _kind(words) or (outer[0] if outer else "")
    if kind in ("", "secret"):
        return bool(kind)
    is_owned = kind == "owned" or (name.startswith("-") and words[-1] == "pass")
    if _NUMBERS.fullmatch(plain):
        return is_owned and len(plain) > 6
    return is_owned or not _LOWER_CASE.fullmatch(plain)


def _kind(words: list[str]) -> str:
    """What the words of a name say of its value: a secret, an owned key, a bare key, or nothing."""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if not _SECRETS.isdisjoint(words) or last in _LAST or (last in ("code", "codes") and before in _CODES):
        return "secret"
    if last in _KEYS:
        return ("owned" if last == "token" else "bare") if not before else "" if before in _HARMLESS else "owned"
    return "owned" if _GLUED.search(last) else ""


def _words_of(section: str) -> list[str]:
    """The words of a section in lower case, without the numbers and `id` after a key: API_KEY_2, AWS_ACCESS_KEY_ID."""
    words = [word.lower() for word in _WORDS.findall(section)]
    while len(words) > 1 and (words[-1].isdigit() or words[-2:] == ["key", "id"]):
        words.pop()
    return words


def _redact_once(text: str, name: str) -> str:
    if text[:1] in ("{", "[", '"'):
        try:
            parsed = json.loads(text, object_pairs_hook=_unique)
            redacted = redact_values(parsed, name)
            return text if redacted == parsed else json.dumps(redacted, ensure_ascii=False)
        except (ValueError, RecursionError):  # no JSON, or a mapping that says a name twice
            pass
    return _redact_pairs(_SHAPE.sub(lambda match: f"{REDACTED}@" if match[0][-1] == "@" else REDACTED, text))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of JSON; ValueError where a name is there twice, and one of its values would not be seen."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _redact_pairs(text: str) -> str:
    """A text without the values of pairs whose name is that of a secret: name=X, "name": "X", Name: X, --name X."""
    parts: list[str] = []
    at = 0
    for match in _NAME.finditer(text):
        if match.start() >= at and _HINT.search(match[0]) and (found := _secret_after(text, match)) is not None:
            parts += [text[at : found[0]], REDACTED]
            at = found[1]
    return "".join([*parts, text[at:]])


def _secret_after(text: str, name: re.Match[str]) -> tuple[int, int] | None:
    """(first, behind the last) of the secret that follows a name; None where none does."""
    before = text[name.start() - 1 : name.start()]
    after = _ASSIGNS.match(text, name.end())
    is_header = False
    if after is None:
        after = _NEXT_WORD.match(text, name.end()) if name[0].startswith("-") else None
    elif after[2]:  # a colon: prose, a line of YAML, a header, a file's name
        is_header = not after[1] and ("-" in name[0] or name[0].lower() in ("authorization", "cookie"))
        if before == "/" or not (after[1] or is_header or before in ("{", ",") or after[0][-1] in " \t"):
            return None
        if not after[1] and name[0] in ("keys", "tokens"):  # a sentence that lists them
            return None
    if after is None:
        return None
    start = after.end()
    quote = _QUOTE.match(text, start)
    is_quoted = after[0][:1] in ("\\", '"', "'")
    if quote is not None and (is_quoted or quote[0] != before):
        start = quote.end()
        behind = text.find(quote[0], start)
        behind = behind if behind >= 0 else len(text)
    else:
        found = (_HEADER if is_header else _UNQUOTED).match(text, start)
        behind = found.end() if found is not None else start
    is_signature = before in ("?", "&") and name[0].lower().endswith(("sig", "signature"))
    value = text[start:behind]
    return (start, behind) if value and (is_signature or is_secret(name[0], value)) else None
