"""completions.jsonl, which an entry may write next to its trace: completions as text, for a reader.

    {"step": 40, "prompt": "ovb>", "completion": "bvd", "answer": "bvo", "reward": 0.75}

Nothing of a trace depends on it: lines that are cut or of another shape are left out.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.bits.files import MALFORMED, open_regular

FILE = "completions.jsonl"
MAX_BYTES = 2**22
"""So much of the file's end is read."""
MAX_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Shown:
    """One completion."""

    step: int
    prompt: str
    completion: str
    answer: str
    reward: float | None


@dataclass(frozen=True, slots=True)
class ShownPair:
    """Completions of one prompt in one step of two runs; `b` has the value None in a report of one run."""

    a: Shown
    b: Shown | None

    @property
    def is_different(self) -> bool:
        return self.b is not None and self.a.completion != self.b.completion


def read_shown(directory: Path) -> list[Shown]:
    """The completions that were shown, in their order; none where there is no such file."""
    try:
        with open_regular(directory / FILE, follows_links=True) as file:
            file.seek(max(0, file.seek(0, 2) - MAX_BYTES))
            lines = file.read(MAX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return list(_parsed(lines))


def _parsed(lines: Sequence[str]) -> Iterator[Shown]:
    for line in lines:
        try:
            fields = json.loads(line)
            reward = fields.get("reward")
            yield Shown(
                int(fields["step"]),
                str(fields["prompt"]),
                str(fields["completion"]),
                str(fields.get("answer", "")),
                None if reward is None else float(reward),
            )
        except MALFORMED:  # cut, or somebody else's
            continue


def shown_pairs(a: Sequence[Shown], b: Sequence[Shown] | None) -> list[ShownPair]:
    """Return at most MAX_SHOWN pairs of the last step that both runs have, those that differ first."""
    steps = {each.step for each in a} & {each.step for each in (a if b is None else b)}
    if not steps:
        return []
    last = max(steps)
    if b is None:
        return [ShownPair(each, None) for each in a if each.step == last][:MAX_SHOWN]
    of_b: dict[str, list[Shown]] = {}
    for each in b:
        if each.step == last:
            of_b.setdefault(each.prompt, []).append(each)
    pairs = [ShownPair(each, of_b[each.prompt].pop(0)) for each in a if each.step == last and of_b.get(each.prompt)]
    return sorted(pairs, key=lambda pair: not pair.is_different)[:MAX_SHOWN]
