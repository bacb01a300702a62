"""The facts of a report in plain values, as the template takes them. Reads traces; everything foreign is text here."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import Any

from harness.bits.redaction import REDACTED, redact_argv, redact_fields, redact_text
from harness.bits.text import count, escape, one_line
from harness.lab.report.subjects import Pair, Report, Subject
from harness.render.divergence import (
    LABELS,
    attribution_lines,
    cause_lines,
    distance,
    headline,
    noun,
    pair_of,
    verdict_text,
)
from harness.render.report.completions import Twin, flipped_rollouts
from harness.render.report.next_commands import COMMIT, FILE, next_commands
from harness.render.report.shown_completions import ShownPair, read_shown, shown_pairs
from harness.render.report.vocabulary import read_vocabulary
from harness.trace.chain import PHASES, Scope
from harness.trace.element_diff import ValueDifference, compare
from harness.trace.explanation import last_known
from harness.trace.layout import MANIFEST
from harness.trace.manifest import PARTS, Manifest, short_field
from harness.trace.reader import Trace
from harness.trace.value_diff import RecordedDifference, all_differences
from harness.trace.verdict import STEP_ONLY, TOKENS, Difference, Kind

SIGNS = {Kind.EQUAL: "=", Kind.DIVERGED: "≠", Kind.NOT_COMPARABLE: "?", Kind.INCOMPLETE: "…"}
ABOUT = {
    "identity": ("Configuration", "The command and the values that define the results. It must be equal."),
    "content": ("Data and functions", "Digests of what the configuration names: data, functions, checkpoints."),
    "numerics": ("Hardware and software", "What computes. If it differs, results may differ by rounding."),
    "subject": ("Code", "Commit, and files that differ from it."),
    "perturbation": ("Runtime settings", "How work is distributed: threads, processes, hash seed."),
}
HOW = {
    Difference.VALUE: "different bits",
    Difference.DTYPE: "different dtypes",
    Difference.SHAPE: "different shapes",
    Difference.VALUE_ONLY_IN_A: "{} in A only",
    Difference.VALUE_ONLY_IN_B: "{} in B only",
}
MAX_STEPS = 20
"""Maximum number of steps whose differences are listed, from the first that differs on."""
MAX_VALUES = 50
"""Maximum number of rows of the table of first differences."""
MAX_SHOWN_CHARS = 20_000
"""Maximum length of a sample completion."""
MAX_BY_LETTER = 400
"""Letters of two texts that are compared one by one: of texts that repeat themselves it takes the cube of them."""


@dataclass(frozen=True, slots=True)
class PhaseState:
    """A phase of the step at which two runs diverge."""

    name: str
    state: str
    """equal, different, or first: the phase of the first difference."""
    num_different: int
    num_values: int


@dataclass(frozen=True, slots=True)
class ValueState:
    """A row of the table of first differences."""

    step: int
    rank: int | None
    """None if there is one."""
    phase: str
    noun: str
    name: str
    a: str
    b: str
    how: str


def run_rows(report: Report) -> list[tuple[str, list[str], bool]]:
    """Return (heading, a text for each run, whether they differ) of what a reader asks of a run first."""
    found = [_facts(subject) for subject in report.subjects]
    names = dict.fromkeys(name for each in found for name in each)
    rows = [(name, [each.get(name, "") for each in found]) for name in names]
    alike = ("Trace", "Recorded")
    return [(name, texts, len(set(texts)) > 1 and name not in alike) for name, texts in rows if any(texts)]


def _facts(subject: Subject) -> dict[str, str]:
    trace, manifest = subject.trace, subject.trace.manifest
    found = {"Trace": redact_text(subject.name), "Recorded": _date(trace), "Steps": _steps(trace.steps)}
    found["Processes"] = str(len(trace.ranks))
    if manifest is not None:
        code = manifest.fingerprint.subject
        files = [name.removeprefix(FILE) for name in code if name.startswith(FILE)]
        found["Command"] = " ".join(redact_argv(tuple(map(short_field, manifest.argv))))
        found["Commit"] = code.get(COMMIT, "unknown")[:60] + (f", with changes of {', '.join(files)}" if files else "")
        found["Determinism level"] = manifest.level
    found["Incomplete"] = "; ".join(trace.gaps)
    found["Note"] = "; ".join(trace.damages)
    return {name: one_line(text, 600) for name, text in found.items()}


def _date(trace: Trace) -> str:
    """Return when a trace was finished, by its manifest's file."""
    try:
        written_s = (trace.directory / MANIFEST).stat().st_mtime
    except OSError:
        return ""
    return datetime.fromtimestamp(written_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _steps(steps: tuple[int, ...]) -> str:
    """40 steps, 0 to 39."""
    return f"{count(len(steps), 'step')}, {steps[0]} to {steps[-1]}" if steps else "no steps"


def pair_view(pair: Pair) -> dict[str, Any]:
    """One comparison, in plain values."""
    verdict, a, b = pair.verdict, pair.a.trace, pair.b.trace
    first = verdict.first
    values = list(_values(pair))
    return {
        "a": pair.a.letter,
        "b": pair.b.letter,
        "kind": verdict.kind.value,
        "sign": SIGNS[verdict.kind],
        "label": LABELS[verdict.kind],
        "headline": _sentence(redact_text(headline(verdict))),
        "reasons": [_sentence(redact_text(one_line(str(reason)))) for reason in verdict.reasons],
        "causes": [_sentence(redact_text(line)) for line in cause_lines(verdict, pair.b.letter)],
        "attribution": [_sentence(redact_text(line)) for line in attribution_lines(verdict)],
        "told": redact_text(verdict_text(verdict, colour=False)),
        "step": first.step if first else None,
        "num_steps": verdict.num_steps,
        "num_steps_different": verdict.num_steps_different,
        "phases": list(_phases(pair)),
        "commands": next_commands(pair),
        "first_values": values[:MAX_VALUES],
        "is_cut": len(values) > MAX_VALUES,
        "fingerprints": fingerprints(a.manifest, b.manifest),
        "rollouts": list(_rollouts(pair)),
        "shown": [shown_view(each) for each in shown_pairs(read_shown(a.directory), read_shown(b.directory))],
        "has_tokens": TOKENS in verdict.attribution,
    }


def alone_view(subject: Subject) -> dict[str, Any]:
    """A run by itself."""
    manifest = subject.trace.manifest
    return {
        "fingerprints": fingerprints(manifest, manifest),
        "shown": [shown_view(each) for each in shown_pairs(read_shown(subject.trace.directory), None)],
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def fingerprints(a: Manifest | None, b: Manifest | None) -> list[dict[str, Any]]:
    """Return the parts that either has, without secrets, as lines (name, A, B); of one run, `b` is `a`."""
    found = []
    for part in PARTS:
        left, right = (_shown(getattr(each.fingerprint, part)) if each else {} for each in (a, b))
        lines = [(name, left.get(name), right.get(name)) for name in sorted(left.keys() | right.keys())]
        if lines:
            name, about = ABOUT[part]
            different = [line for line in lines if line[1] != line[2]]
            alike = [line for line in lines if line[1] == line[2]]
            found.append({"name": name, "about": about, "different": different, "alike": alike})
    return found


def _shown(fields: Mapping[str, str]) -> dict[str, str]:
    return redact_fields({name: short_field(value) for name, value in fields.items()})


# --------------------------------------------------------------------------------------------------------- differences


def _phases(pair: Pair) -> Iterator[PhaseState]:
    """Yield the recorded phases of the step at which two runs diverge, in order; none if one run lacks the step."""
    first, a, b = pair.verdict.first, pair.a.trace, pair.b.trace
    if first is None or first.what in STEP_ONLY:
        return
    value = first.a or first.b
    assert value is not None
    values, different = Counter[str](), Counter[str]()
    for rank in a.logs(first.step).keys() & b.logs(first.step).keys():
        values.update(each.phase for each in a.columns(first.step, rank).values() if each.scope is not Scope.CONTEXT)
    different.update(_of(each).phase for _, _, each in _differences(pair, first.step))
    for phase in dict.fromkeys((*(phase for phase in PHASES if values[phase] or different[phase]), value.phase)):
        state = "first" if phase == value.phase else "different" if different[phase] else "equal"
        yield PhaseState(phase, state, different[phase], max(values[phase], different[phase]))


def _differences(pair: Pair, step: int) -> Iterator[tuple[int, int, RecordedDifference]]:
    """Yield (step, rank, difference) of the values of one step, without states of generators."""
    a, b = pair.a.trace, pair.b.trace
    for rank in sorted(a.logs(step).keys() & b.logs(step).keys()):
        found = all_differences(a.columns(step, rank), b.columns(step, rank))
        yield from ((step, rank, each) for each in found if each.scope is not Scope.CONTEXT)


def _of(difference: RecordedDifference) -> Any:
    return difference.a or difference.b


def _values(pair: Pair) -> Iterator[ValueState]:
    """Yield the first difference of each value, by step; one more than MAX_VALUES at most."""
    first, a, b = pair.verdict.first, pair.a.trace, pair.b.trace
    if first is None:
        return
    steps = [step for step in a.steps if step >= first.step and step in set(b.steps)][:MAX_STEPS]
    seen: set[tuple[str, str]] = set()
    for step, rank, each in (found for number in steps for found in _differences(pair, number)):
        value = _of(each)
        if (value.phase, value.name) in seen:
            continue
        seen.add((value.phase, value.name))
        difference = _element_difference(pair, step, rank, each)
        one, other = _texts(pair, step, rank, each)
        if difference is not None and difference.num_elements > 1:
            one, other = f"{difference.a} at {difference.first}", f"{difference.b} at {difference.first}"
        verb = "changed" if "unchanged" in one + other else "recorded"
        how = distance(difference) if difference else HOW[each.what].format(verb)
        ranks = rank if len(a.ranks) > 1 else None
        part = " (one batch or rank)" if value.scope is Scope.PHYSICAL else ""
        name = one_line(value.name) + (f" #{value.occurrence}" if value.occurrence else "")
        yield ValueState(step, ranks, one_line(value.phase, 40), noun(value) + part, name, one, other, how)
        if len(seen) > MAX_VALUES:
            return


def _element_difference(pair: Pair, step: int, rank: int, each: RecordedDifference) -> ValueDifference | None:
    """Return how two values of one shape differ, if both traces have them."""
    if each.what is not Difference.VALUE or each.a is None or each.b is None:
        return None
    x, y = pair.a.trace.tensor(step, rank, each.a), pair.b.trace.tensor(step, rank, each.b)
    return None if x is None or y is None or len(x) != len(y) else compare(each.a.dtype, x, y)


def _texts(pair: Pair, step: int, rank: int, each: RecordedDifference) -> tuple[str, str]:
    """Return both values as far as they are known; one that was not recorded as it was recorded last."""
    value, notes, sides = _of(each), ["", ""], [each.a, each.b]
    for at, trace in enumerate((pair.a.trace, pair.b.trace)):
        if sides[at] is None and (known := last_known(trace, step, rank, value.phase, value.name)):
            sides[at], notes[at] = known.value, f", unchanged since step {known.step}"
    texts = pair_of(sides[0], sides[1])
    shown = [
        text or ("not recorded" if side is None else f"digest {side.digest.hex()[:8]}…")
        for text, side in zip(texts, sides, strict=True)
    ]
    return shown[0] + notes[0], shown[1] + notes[1]


_JOINER = re.compile("(?<=[^\x00-\x7f\u200c\u200d])[\u200c\u200d](?=[^\x00-\x7f\u200c\u200d])")
"""Joins two letters or two emoji, or keeps them apart: part of how they are written, and no letter of its own."""


def visible(text: str) -> str:
    """A token's text with nothing in it that would not be seen: line breaks, tabs, what turns text around."""
    shown = text.replace("\n", "↵").replace("\t", "⇥").replace("\r", "␍")
    joiners = {match.start() for match in _JOINER.finditer(shown)}
    return "".join(each if each.isprintable() or at in joiners else escape(each) for at, each in enumerate(shown))


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
