"""Completions of two runs side by side, with flipped tokens marked. Only saved tensors are read.

Tokens are integers of a rollout, [sequences, positions], kept with every step of a run that is not large. A mask of
their shape shows which positions were generated. They become text by the vocabulary in the tokenizer.json beside a
run's checkpoint: no tokenizer is loaded. Byte-level vocabularies write bytes as letters of their own, others a blank as
a low bar.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from harness.bits.files import MALFORMED, read_regular
from harness.bits.redaction import REDACTED, redact_text
from harness.bits.text import escape
from harness.lab.report.subjects import Pair
from harness.trace.attribution import kind_of
from harness.trace.chain import RecordedValue, Scope
from harness.trace.element_diff import numbers
from harness.trace.reader import Trace
from harness.trace.values import ELEMENT_BYTES
from harness.trace.verdict import REWARDS, TOKENS

MAX_STEPS = 3
MAX_SEQUENCES = 8
MAX_TOKENS = 512
"""Maximum number of tokens of a sequence."""
TOKENIZERS = ("checkpoints/step-*/policy/tokenizer.json", "tokenizer.json")
"""Relative to a trace; of several the last counts."""
MAX_BYTES = 2**26
_SEEN = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _SEEN]
_BYTES = {chr(byte): byte for byte in _SEEN} | {chr(256 + at): byte for at, byte in enumerate(_HIDDEN)}
"""GPT-2's letters for bytes: itself where it can be seen, else the next one from 256 on."""


def flipped_rollouts(pair: Pair) -> Iterator[dict[str, Any]]:
    """Yield the sequences that differ in the first steps in which tokens flipped, if both runs have saved them.

    Raises TraceError if a file of saved tensors cannot be read.
    """
    a, b, letter = pair.a.trace, pair.b.trace, pair.b.letter
    changed = pair.verdict.attribution.get(TOKENS)
    if changed is None or changed.first is None:
        return
    vocabulary = read_vocabulary(a.directory) or read_vocabulary(b.directory)
    steps = [step for step in a.steps if step >= changed.first.step and step in set(b.steps)][:MAX_STEPS]
    for step, rank in ((at, rank) for at in steps for rank in sorted(a.logs(at).keys() & b.logs(at).keys())):
        one, other = _generated(a, step, rank), _generated(b, step, rank)
        if len(one) != len(other):
            continue
        flipped = [(at, x, y) for at, (x, y) in enumerate(zip(one, other, strict=True)) if x[0] != y[0]]
        if flipped:
            yield {
                "title": f"Step {step}" + (f", rank {rank}" if len(a.ranks) > 1 else ""),
                "num_flipped": len(flipped),
                "num_sequences": len(one),
                "is_text": bool(vocabulary),
                "sequences": [
                    (at, [("A", _texts(x[0], y[0], vocabulary), x[1]), (letter, _texts(y[0], x[0], vocabulary), y[1])])
                    for at, x, y in flipped[:MAX_SEQUENCES]
                ],
            }


def _generated(trace: Trace, step: int, rank: int) -> list[tuple[list[int], float | None]]:
    """Return (tokens up to the last generated one, reward) of each sequence; none if the tokens were not saved."""

    def saved(phase: str, is_wanted: Callable[[RecordedValue], bool]) -> tuple[Sequence[int], Sequence[float]] | None:
        for _, value in trace.columns(step, rank).of_phases((phase,)):
            if value.dtype in ELEMENT_BYTES and is_wanted(value):
                data = trace.tensor(step, rank, value)
                if data is not None and len(data) == prod(value.shape) * ELEMENT_BYTES[value.dtype]:
                    return value.shape, list(numbers(value.dtype, data))
        return None

    tokens = saved("rollout", lambda each: each.scope in (Scope.LOGICAL, Scope.PHYSICAL) and kind_of(each) == TOKENS)
    if tokens is None:
        return []
    shape, flat = tokens
    num, width = shape
    mask = saved("rollout", lambda e: e.dtype == "bool" and e.shape == shape and "mask" in e.name.lower())
    rewards = saved("reward", lambda e: kind_of(e) == REWARDS and e.shape == (num,) and e.dtype != "bool")
    found: list[tuple[list[int], float | None]] = []
    for at in range(num):
        marks = mask[1][at * width : (at + 1) * width] if mask else ()
        end = width - marks[::-1].index(1) if 1 in marks else width
        row = [int(token) for token in flat[at * width : at * width + min(end, MAX_TOKENS)]]
        found.append((row, rewards[1][at] if rewards else None))
    return found


def _texts(tokens: Sequence[int], other: Sequence[int], vocabulary: Mapping[int, str]) -> list[tuple[str, bool]]:
    """Return the text of each token, and whether the other run has a different one there."""
    texts = [vocabulary.get(token, f"#{token}") if vocabulary else f"{token} " for token in tokens]
    joined = "".join(texts)
    if vocabulary and redact_text(joined) != joined:
        return [(REDACTED, True)]
    flips = [tokens[at : at + 1] != other[at : at + 1] for at in range(len(tokens))]
    return [(visible(text), flip) for text, flip in zip(texts, flips, strict=True)]


def visible(text: str) -> str:
    """Return text without characters that are not seen, as line breaks, tabs and what turns text around."""
    shown = text.replace("\n", "↵").replace("\t", "⇥").replace("\r", "␍")
    return "".join(each if each.isprintable() else escape(each) for each in shown)


def read_vocabulary(directory: Path) -> Mapping[int, str]:
    """Return the text of each token of a run; empty without a tokenizer.json of a known shape below its trace."""
    for place in TOKENIZERS:
        for path in sorted(directory.glob(place), reverse=True):
            try:
                return _vocabulary(json.loads(read_regular(path, max_bytes=MAX_BYTES, follows_links=True)))
            except (OSError, *MALFORMED):  # gone, cut, or of another shape
                continue
    return {}


def _vocabulary(fields: Mapping[str, Any]) -> dict[int, str]:
    listed = fields["model"]["vocab"]
    vocab = listed.items() if isinstance(listed, dict) else ((entry[0], at) for at, entry in enumerate(listed))
    is_bytes = '"ByteLevel"' in json.dumps([fields.get("decoder"), fields.get("pre_tokenizer")])
    found = {int(number): _of_bytes(text) if is_bytes else text.replace("\u2581", " ") for text, number in vocab}
    return found | {int(added["id"]): str(added["content"]) for added in fields.get("added_tokens") or ()}


def _of_bytes(text: str) -> str:
    """Return the bytes for which these letters stand as text; part of a character is escaped."""
    is_known = all(letter in _BYTES for letter in text)
    return bytes(_BYTES[each] for each in text).decode("utf-8", "backslashreplace") if is_known else text
