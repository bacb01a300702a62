"""Completions of two runs side by side, with flipped tokens marked. Only saved tensors are read.

Tokens are integers of a rollout, [sequences, positions], kept with every step of a run that is not large. A mask of
their shape shows which positions were generated; a reward for each sequence is shown beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.trace.attribution import kind_of
from harness.trace.chain import RecordedValue, Scope
from harness.trace.element_diff import numbers
from harness.trace.reader import Trace
from harness.trace.values import ELEMENT_BYTES
from harness.trace.verdict import REWARDS, TOKENS

MAX_STEPS = 3
MAX_SEQUENCES = 8
"""Maximum number of sequences of a step; those that differ come first."""
MAX_TOKENS = 512
"""Maximum number of tokens of a sequence."""


@dataclass(frozen=True, slots=True)
class Twin:
    """One sequence of a step, in both runs."""

    number: int
    a: tuple[int, ...]
    """Its tokens, as far as they are shown; without what fills it up."""
    b: tuple[int, ...]
    num_prompt: int
    """Number of prompt tokens at its beginning; 0 without a mask."""
    reward_a: float | None
    reward_b: float | None

    @property
    def flipped(self) -> tuple[int, ...]:
        """Positions at which the two have other tokens, or one has none."""
        longest = max(len(self.a), len(self.b))
        return tuple(at for at in range(longest) if self.a[at : at + 1] != self.b[at : at + 1])


@dataclass(frozen=True, slots=True)
class Rollout:
    """Sequences that were generated in one step."""

    step: int
    rank: int
    name: str
    sequences: tuple[Twin, ...]
    num_sequences: int
    num_flipped: int
    """Sequences in which a token flipped."""


def flipped_rollouts(a: Trace, b: Trace) -> list[Rollout]:
    """The first steps in which tokens flipped, at most MAX_STEPS; none where none did, or no tokens were kept.

    TraceError where a file of kept tensors cannot be read.
    """
    found: list[Rollout] = []
    steps_b = set(b.steps)
    for step in (step for step in a.steps if step in steps_b):
        for rank in sorted(a.logs(step).keys() & b.logs(step).keys()):
            one, other = ({(each.key, each.scope): each for each in _tokens(trace, step, rank)} for trace in (a, b))
            for key, recorded_value in one.items():
                twin = other.get(key)
                if twin is None or twin.digest == recorded_value.digest:
                    continue
                rollout = _rollout((a, b), (recorded_value, twin), step, rank)
                if rollout is not None and rollout.num_flipped:
                    found.append(rollout)
        if len(found) >= MAX_STEPS:
            break
    return found[:MAX_STEPS]


def _tokens(trace: Trace, step: int, rank: int) -> Iterator[RecordedValue]:
    for _, recorded_value in trace.columns(step, rank).of_phases(("rollout",)):
        if recorded_value.scope in (Scope.LOGICAL, Scope.PHYSICAL) and kind_of(recorded_value) == TOKENS:
            yield recorded_value


@dataclass(frozen=True, slots=True)
class _Generated:
    """What one run has generated in one step."""

    rows: Sequence[tuple[int, ...]]
    """Tokens by sequence."""
    masks: Sequence[tuple[int, ...]] | None
    """Which of them were generated; None where that is not known."""
    rewards: Mapping[int, float]
    """By sequence."""

    def num_prompt(self, number: int) -> int:
        """How many tokens stand before the first that was generated."""
        mask = self.masks[number] if self.masks else ()
        return mask.index(1) if 1 in mask else 0

    def shown(self, number: int) -> tuple[int, ...]:
        """The tokens of a sequence up to the last generated one, if a mask marks it."""
        row, mask = self.rows[number], self.masks[number] if self.masks else ()
        end = len(row) - mask[::-1].index(1) if 1 in mask else len(row)
        return row[: min(end, MAX_TOKENS)]


def _rollout(
    traces: tuple[Trace, Trace], recorded_values: tuple[RecordedValue, RecordedValue], step: int, rank: int
) -> Rollout | None:
    """The sequences of a leaf in both runs; None where one has not kept them, or has another number of them."""
    a, b = (
        _generated(trace, step, rank, recorded_value)
        for trace, recorded_value in zip(traces, recorded_values, strict=True)
    )
    if a is None or b is None or len(a.rows) != len(b.rows):
        return None
    made = [
        Twin(at, a.shown(at), b.shown(at), a.num_prompt(at), a.rewards.get(at), b.rewards.get(at))
        for at in range(len(a.rows))
    ]
    flipped = [each for each in made if each.flipped]
    return Rollout(step, rank, recorded_values[0].name, tuple(flipped[:MAX_SEQUENCES]), len(made), len(flipped))


def _generated(trace: Trace, step: int, rank: int, tokens: RecordedValue) -> _Generated | None:
    """None where the tokens were not kept."""
    rows = _rows(trace, step, rank, tokens)
    if rows is None:
        return None
    return _Generated(rows, _masks(trace, step, rank, tokens), _rewards(trace, step, rank, len(rows)))


def _rows(trace: Trace, step: int, rank: int, recorded_value: RecordedValue) -> list[tuple[int, ...]] | None:
    """A matrix of integers by its rows; None where it was not kept."""
    data = trace.tensor(step, rank, recorded_value)
    num_rows, width = recorded_value.shape
    if data is None or len(data) != num_rows * width * ELEMENT_BYTES[recorded_value.dtype]:
        return None
    flat = [int(value) for value in numbers(recorded_value.dtype, data)]
    return [tuple(flat[start : start + width]) for start in range(0, num_rows * width, width)] if width else []


def _masks(trace: Trace, step: int, rank: int, tokens: RecordedValue) -> list[tuple[int, ...]] | None:
    """Which positions of these tokens were generated: a rollout's mask of the same shape; None without one."""
    for _, recorded_value in trace.columns(step, rank).of_phases(("rollout",)):
        if (
            recorded_value.dtype == "bool"
            and recorded_value.shape == tokens.shape
            and "mask" in recorded_value.name.lower()
        ):
            return _rows(trace, step, rank, recorded_value)
    return None


def _rewards(trace: Trace, step: int, rank: int, num: int) -> Mapping[int, float]:
    """By sequence; empty where no reward for each was kept."""
    for _, recorded_value in trace.columns(step, rank).of_phases(("reward",)):
        if (
            kind_of(recorded_value) == REWARDS
            and recorded_value.shape == (num,)
            and recorded_value.dtype in ELEMENT_BYTES
            and recorded_value.dtype != "bool"
        ):
            data = trace.tensor(step, rank, recorded_value)
            if data is not None:
                return dict(enumerate(numbers(recorded_value.dtype, data)))
    return {}
