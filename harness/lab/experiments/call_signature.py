"""Whether this user has recorded a call on this machine: call.hmac, beside call.json, holds its signature.

    prepare ─▶ call.json + call.hmac ─▶ reproduce RUN: valid? ─yes─▶ run
                                                        └─no──▶ trust: compared with the scenarios here

The signature is an HMAC-SHA256 of the call without its secrets, which is what stays in call.json. Its key is made once,
and lies in the user's cache directory, where no repository, archive or test can put one. It covers the call alone: of
the files beside it, it says nothing.
"""

import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from errno import EINVAL
from pathlib import Path

from harness.core.errors import UsageError
from harness.core.regular_file import open_regular, read_regular
from harness.core.replaced_file import write_replacing
from harness.core.user_cache import user_cache
from harness.lab.experiments.entry_call import EntryCall

SIGNATURE = "call.hmac"
KEY = "key"
"""File in the user's cache directory."""
KEY_BYTES = 32
_CONTEXT = b"rlharness call 1\0"
"""Separates these signatures from any others that are made with the same key."""


def sign_call(directory: Path, call: EntryCall, environ: Mapping[str, str]) -> None:
    """Write the signature of a call beside it.

    Without a usable cache directory, write nothing: reproduce then asks for --trust.
    """
    with suppress(OSError, UsageError):
        cache = user_cache(environ)
        _make_key(cache)
        signature = _signature(_read_key(cache), call.without_secrets())
        write_replacing(directory / SIGNATURE, f"{signature}\n")


def is_signed(directory: Path, call: EntryCall, environ: Mapping[str, str]) -> bool:
    """Whether the signature in a directory is the one that this user's key gives to a call, read from there."""
    try:
        found = read_regular(directory / SIGNATURE, max_bytes=100)
        expected = _signature(_read_key(user_cache(environ)), asdict(call))
    except (OSError, UsageError):
        return False
    return hmac.compare_digest(found.strip(), expected.encode())


def _signature(key: bytes, fields: Mapping[str, object]) -> str:
    """Return 64 hexadecimal digits: the HMAC of the fields as JSON."""
    plain = json.loads(json.dumps(fields))
    return hmac.new(key, _CONTEXT + json.dumps(plain, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def _make_key(cache: Path) -> None:
    """Make the key if it is missing. If several processes try at once, one succeeds."""
    if os.path.lexists(cache / KEY):
        return
    descriptor, name = tempfile.mkstemp(dir=cache)  # of mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(name, cache / KEY)
    finally:
        os.unlink(name)


def _read_key(cache: Path) -> bytes:
    """Return the key; OSError if it is missing, or if another user could have read or made it."""
    with open_regular(cache / KEY) as file:
        found = os.fstat(file.fileno())
        is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
        key = file.read(KEY_BYTES + 1) if is_own else b""
    if len(key) != KEY_BYTES:
        raise OSError(EINVAL, "it is not a key that only this user can read", str(cache / KEY))
    return key
