"""The facts of a report in plain values, as the template takes them. Reads traces; everything foreign is text here."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from harness.bits.redaction import REDACTED, redact_argv, redact_text
from harness.bits.text import count, escape, one_line
from harness.lab.report.subjects import Pair, Subject
from harness.render.divergence import LABELS, attribution_lines, headline, verdict_text
from harness.render.report.completions import Twin, flipped_rollouts
from harness.render.report.fingerprints import side_by_side
from harness.render.report.grid import First, Grid, Row, difference_grid
from harness.render.report.grid_data import distance, first_value, grid_data
from harness.render.report.next_commands import next_commands
from harness.render.report.shown_completions import ShownPair, read_shown, shown_pairs
from harness.render.report.vocabulary import read_vocabulary
from harness.trace.chain import PHASES
from harness.trace.manifest import short_field
from harness.trace.verdict import TOKENS, Kind

SIGNS = {Kind.EQUAL: "=", Kind.DIVERGED: "≠", Kind.NOT_COMPARABLE: "?", Kind.INCOMPLETE: "…"}
MAX_VALUES = 50
"""Maximum number of rows of the table of first differences."""
MAX_SHOWN_CHARS = 20_000
"""Maximum length of a sample completion."""
MAX_BY_LETTER = 400
"""Letters of two texts that are compared one by one: of texts that repeat themselves it takes the cube of them."""
EQUAL, DIFFERENT, FIRST, ABSENT = "equal", "different", "first", "absent"


@dataclass(frozen=True, slots=True)
class PhaseState:
    """A phase of the step at which two runs diverge."""

    name: str
    state: str
    """EQUAL, DIFFERENT, FIRST (different, and the first to be) or ABSENT."""
    num_different: int
    num_values: int


@dataclass(frozen=True, slots=True)
class ValueState:
    """A row of the table of first differences."""

    row: Row
    first: First
    num_different: int
    num_pairs: int
    values: str

    @property
    def occurrence(self) -> int:
        """Occurrence of the value that differs first."""
        value = self.first.a or self.first.b
        return value.occurrence if value else 0


_JOINER = re.compile("(?<=[^\x00-\x7f\u200c\u200d])[\u200c\u200d](?=[^\x00-\x7f\u200c\u200d])")
"""Joins two letters or two emoji, or keeps them apart: part of how they are written, and no letter of its own."""


def visible(text: str) -> str:
    """A token's text with nothing in it that would not be seen: line breaks, tabs, what turns text around."""
    shown = text.replace("\n", "↵").replace("\t", "⇥").replace("\r", "␍")
    joiners = {match.start() for match in _JOINER.finditer(shown)}
    return "".join(each if each.isprintable() or at in joiners else escape(each) for at, each in enumerate(shown))


def subject_view(subject: Subject) -> dict[str, Any]:
    trace = subject.trace
    manifest = trace.manifest
    return {
        "letter": subject.letter,
        "name": redact_text(subject.name),
        "steps": _steps(trace.steps),
        "num_ranks": len(trace.ranks),
        "level": manifest.level if manifest else "unknown",
        "command": " ".join(redact_argv(tuple(map(short_field, manifest.argv)))) if manifest else "",
        "gaps": trace.gaps,
        "damages": trace.damages,
    }


def _steps(steps: tuple[int, ...]) -> str:
    """40 steps, 0 to 39."""
    return f"{count(len(steps), 'step')}, {steps[0]} to {steps[-1]}" if steps else "no steps"


def pair_view(pair: Pair, max_cells: int) -> dict[str, Any]:
    """One comparison, in plain values."""
    verdict, a, b = pair.verdict, pair.a.trace, pair.b.trace
    grid = difference_grid(a, b, max_cells)
    first = verdict.first
    return {
        "a": pair.a.letter,
        "b": pair.b.letter,
        "kind": verdict.kind.value,
        "sign": SIGNS[verdict.kind],
        "label": LABELS[verdict.kind],
        "headline": headline(verdict),
        "reasons": [redact_text(one_line(str(reason))) for reason in verdict.reasons],
        "attribution": [_sentence(redact_text(line)) for line in attribution_lines(verdict)],
        "told": redact_text(verdict_text(verdict, colour=False)),
        "step": first.step if first else None,
        "num_steps": verdict.num_steps,
        "num_steps_different": verdict.num_steps_different,
        "phases": list(_phases(pair)),
        "commands": next_commands(pair),
        "grid": grid,
        "first_values": list(_values(grid, pair)),
        "num_values_different": len({cell // max(1, len(grid.columns)) for cell in grid.firsts}),
        "grid_data": grid_data(grid, a, b),
        "fingerprints": side_by_side(a.manifest, b.manifest),
        "rollouts": list(_rollouts(pair)),
        "shown": [shown_view(each) for each in shown_pairs(read_shown(a.directory), read_shown(b.directory))],
        "has_tokens": TOKENS in verdict.attribution,
    }


def alone_view(subject: Subject) -> dict[str, Any]:
    """A run by itself."""
    manifest = subject.trace.manifest
    return {
        "fingerprints": side_by_side(manifest, manifest),
        "shown": [shown_view(each) for each in shown_pairs(read_shown(subject.trace.directory), None)],
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _phases(pair: Pair) -> Iterator[PhaseState]:
    """Yield the phases of the step at which two runs diverge, in order; none if they are equal or lack the step."""
    first = pair.verdict.first
    if first is None or (value := first.a or first.b) is None:
        return
    grid = difference_grid(pair.a.trace, pair.b.trace, only=first.step)
    values, different = Counter[str](), Counter[str]()
    for row in range(len(grid.rows)):
        values[grid.rows[row].phase] += grid.num_pairs[row]
        different[grid.rows[row].phase] += grid.num_different[row]
    for phase in dict.fromkeys((*PHASES, *values)):
        state = DIFFERENT if different[phase] else EQUAL if values[phase] else ABSENT
        state = FIRST if phase == value.phase else state
        yield PhaseState(phase, state, different[phase], values[phase])


def _values(grid: Grid, pair: Pair) -> Iterator[ValueState]:
    """Each row that differs, those that differ first before the others."""
    width = max(1, len(grid.columns))
    earliest: dict[int, First] = {}
    for cell, first in sorted(grid.firsts.items()):
        earliest.setdefault(cell // width, first)
    rows = sorted(earliest, key=lambda row: (earliest[row].step, row))
    for row in rows[:MAX_VALUES]:
        first, cells = earliest[row], range(row * width, (row + 1) * width)
        value = first_value(first, pair.a.trace, pair.b.trace)
        yield ValueState(
            grid.rows[row],
            first,
            sum(map(grid.num_different.__getitem__, cells)),
            sum(map(grid.num_pairs.__getitem__, cells)),
            "" if value is None else distance(value),
        )


# --------------------------------------------------------------------------------------------------------- completions


@dataclass(frozen=True, slots=True)
class Token:
    """One token as it is shown."""

    text: str
    is_flipped: bool
    is_prompt: bool


@dataclass(frozen=True, slots=True)
class Side:
    """Sequence that one run generated."""

    letter: str
    tokens: tuple[Token, ...]
    reward: float | None


def _rollouts(pair: Pair) -> Iterator[dict[str, Any]]:
    """The steps in which tokens flipped first, in text where a vocabulary lies beside a trace."""
    vocabulary = read_vocabulary(pair.a.trace.directory) or read_vocabulary(pair.b.trace.directory)
    for rollout in flipped_rollouts(pair.a.trace, pair.b.trace):
        yield {
            "step": rollout.step,
            "rank": rollout.rank if len(pair.a.trace.ranks) > 1 else None,
            "num_flipped": rollout.num_flipped,
            "num_sequences": rollout.num_sequences,
            "is_text": bool(vocabulary),
            "sequences": [_sequence(twin, pair, vocabulary) for twin in rollout.sequences],
        }


def _sequence(twin: Twin, pair: Pair, vocabulary: Mapping[int, str]) -> dict[str, Any]:
    flipped = set(twin.flipped)
    sides = ((pair.a.letter, twin.a, twin.reward_a), (pair.b.letter, twin.b, twin.reward_b))
    return {
        "number": twin.number,
        "num_flipped": len(flipped),
        "first": min(flipped),
        "sides": [Side(name, _tokens(tokens, flipped, twin, vocabulary), reward) for name, tokens, reward in sides],
    }


def _tokens(tokens: tuple[int, ...], flipped: set[int], twin: Twin, vocabulary: Mapping[int, str]) -> tuple[Token, ...]:
    texts = [vocabulary.get(token, f"#{token}") if vocabulary else str(token) for token in tokens]
    joined = "".join(texts)
    if vocabulary and redact_text(joined) != joined:
        return (Token(REDACTED, bool(flipped), False),)
    return tuple(Token(_seen(text), at in flipped, at < twin.num_prompt) for at, text in enumerate(texts))


def _seen(text: str) -> str:
    """Return a token's text, with signs for a token of white space only."""
    return visible(text) if text.strip(" ") else "␣" * len(text) or "∅"


Pieces = list[tuple[str, bool]]


def shown_view(pair: ShownPair) -> dict[str, Any]:
    """Return a sample completion, with its differences from the other run marked."""
    both = [each for each in (pair.a, pair.b) if each is not None]
    texts = [_cut(visible(redact_text(each.completion))) for each in both]
    pieces = _pieces(*texts) if len(texts) == 2 else ([(texts[0], False)],)
    return {
        "step": pair.a.step,
        "prompt": _cut(visible(redact_text(pair.a.prompt))),
        "answer": _cut(visible(redact_text(pair.a.answer))),
        "sides": [{"pieces": told, "reward": each.reward} for told, each in zip(pieces, both, strict=True)],
    }


def _cut(text: str) -> str:
    more = len(text) - MAX_SHOWN_CHARS
    return text if more <= 0 else f"{text[:MAX_SHOWN_CHARS]}… and {count(more, 'more character')}"


def _pieces(a: str, b: str) -> tuple[Pieces, Pieces]:
    """Two texts in pieces, each with whether the other has something else there: letters, or words of long texts."""
    is_long = len(a) + len(b) > MAX_BY_LETTER
    x, y = (re.findall(r"\S+\s*|\s+", text) if is_long else list(text) for text in (a, b))
    # Words that come again and again are no anchors: a model that repeats itself would take minutes.
    matched = SequenceMatcher(None, x, y, autojunk=is_long).get_opcodes()
    return (
        [("".join(x[i:j]), what != "equal") for what, i, j, _, _ in matched if i < j],
        [("".join(y[i:j]), what != "equal") for what, _, _, i, j in matched if i < j],
    )
