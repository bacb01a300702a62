"""Token numbers to text, from the tokenizer.json beside a run's checkpoint: no tokenizer is loaded, no text encoded.

The vocabulary stands in that file whatever the tokenizer's kind. Byte-level ones write bytes as letters of their own,
others a blank as a low bar; both are undone. Elsewhere a token's text is shown as it stands there.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.bits.files import MALFORMED, read_regular

PLACES = ("checkpoints/step-*/policy/tokenizer.json", "tokenizer.json")
"""Relative to a trace; of several the last counts."""
MAX_BYTES = 2**26
BLANK = "\u2581"


def read_vocabulary(directory: Path) -> Mapping[int, str]:
    """The text of each token of a run; empty where no tokenizer lies beside its trace, or none that is understood."""
    for place in PLACES:
        for path in sorted(directory.glob(place), reverse=True):
            try:
                data = read_regular(path, max_bytes=MAX_BYTES, follows_links=True)
                return parse_vocabulary(json.loads(data))
            except (OSError, *MALFORMED):  # gone, cut, or of another shape
                continue
    return {}


def parse_vocabulary(fields: Mapping[str, Any]) -> dict[int, str]:
    """The text of each token of a tokenizer.json; raises KeyError, TypeError or ValueError for any other file."""
    listed = fields["model"]["vocab"]
    vocab = listed.items() if isinstance(listed, dict) else ((entry[0], at) for at, entry in enumerate(listed))
    is_bytes = '"ByteLevel"' in json.dumps([fields.get("decoder"), fields.get("pre_tokenizer")])
    found = {int(number): _of_bytes(text) if is_bytes else text.replace(BLANK, " ") for text, number in vocab}
    return found | {int(added["id"]): str(added["content"]) for added in fields.get("added_tokens") or ()}


def _of_bytes(text: str) -> str:
    """The bytes for which these letters stand; part of a character is escaped."""
    try:
        return bytes(_BYTES[letter] for letter in text).decode("utf-8", "backslashreplace")
    except KeyError:
        return text


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: itself where it can be seen, else the next one from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


_BYTES = _byte_letters()
