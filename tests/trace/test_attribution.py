"""Attribution: floats only, or which tokens, rewards and signs changed, where first, and what is not known."""

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.trace.explanation import attribute
from harness.trace.format import Kept, RecordedValue, Scope
from harness.trace.verdict import ADVANTAGE_SIGNS, BATCHES, INTEGERS, REWARDS, TOKENS, Count, Element
from tests.support.traces import SEEDED, trace, trace_of_ranks, trace_of_values, value

SEQUENCES, POSITIONS = 4, 6


def tokens(*numbers: int, shape: tuple[int, ...] = (SEQUENCES, POSITIONS)) -> Kept:
    return value("rollout", "completions.tokens", "i64", shape, struct.pack(f"<{len(numbers)}q", *numbers))


def floats(phase: str, *numbers: float) -> Kept:
    return value(phase, phase, "f32", (len(numbers),), struct.pack(f"<{len(numbers)}f", *numbers))


def step(
    changed: dict[int, int] | None = None, rewards: Sequence[float] = (1, 0, 1, 0, 1), sign: float = 1
) -> list[Kept]:
    """A step of a run of reinforcement learning, with other tokens at these elements."""
    ids = [changed.get(at, at) if changed else at for at in range(SEQUENCES * POSITIONS)]
    mask = value("rollout", "completions.mask", "i64", (4, 6), struct.pack("<24q", *[sign < 0] * 24))
    advantages = floats("advantage", 0.5, -0.5, 0.0, sign * 0.25, 1.0)
    return [tokens(*ids), mask, floats("reward", *rewards), advantages, floats("loss", sign)]


def test_nothing_but_floats(tmp_path: Path) -> None:
    a = trace_of_values(tmp_path / "a", [step(), step()])
    other = [step(), [*step()[:3], floats("advantage", 0.6, -0.4, 0.0, 0.25, 1.0), floats("loss", 2.0)]]
    counts = attribute(a, trace_of_values(tmp_path / "b", other))
    assert counts == {TOKENS: Count(48), REWARDS: Count(10), ADVANTAGE_SIGNS: Count(10)}
    assert all(count.is_equal for count in counts.values())


def test_a_digest_of_floats_is_no_integer_that_changed(tmp_path: Path) -> None:
    """Each rollout of the engine tells the digest of its weights, which moves with their last digit."""

    def with_digest(text: bytes, note: bytes = b"a") -> list[list[Kept]]:
        digests = value("rollout", "weights_digest", "texts", (len(text),), text)
        return [[tokens(*range(24)), digests, value("rollout", "note", "text", (1,), note)]]

    a = trace_of_values(tmp_path / "a", with_digest(b"0123"))
    assert attribute(a, trace_of_values(tmp_path / "b", with_digest(b"4567")))[INTEGERS].is_equal
    assert not attribute(a, trace_of_values(tmp_path / "c", with_digest(b"0123", b"b")))[INTEGERS].is_equal


def test_what_flipped_where_first_and_how_many(tmp_path: Path) -> None:
    a = trace_of_values(tmp_path / "a", [step(), step(), step(), step()])
    sick = [step(), step({17: 99, 3: 98}), step({0: 7}), step(rewards=(1, 0, 0, 1, 1), sign=-1)]
    counts = attribute(a, trace_of_values(tmp_path / "b", sick))
    shape = (SEQUENCES, POSITIONS)
    assert counts[TOKENS] == Count(96, 3, 0, Element(1, 0, "completions.tokens", shape, 3))
    assert counts[REWARDS] == Count(20, 2, 0, Element(3, 0, "reward", (5,), 2))
    assert counts[ADVANTAGE_SIGNS] == Count(20, 1, 0, Element(3, 0, "advantage", (5,), 3))


@settings(SEEDED, max_examples=25)
@given(st.lists(st.dictionaries(st.integers(0, 23), st.integers(24, 99), max_size=4), max_size=5))
def test_every_flip_is_counted(tmp_path_factory: pytest.TempPathFactory, flips: list[dict[int, int]]) -> None:
    directory = tmp_path_factory.mktemp("attribution")
    a = trace_of_values(directory / "a", [step() for _ in flips])
    b = trace_of_values(directory / "b", [step(each) for each in flips])
    count = attribute(a, b).get(TOKENS, Count())
    assert (count.num_compared, count.num_different) == (24 * len(flips), sum(map(len, flips)))
    found = next(((number, min(each)) for number, each in enumerate(flips) if each), None)
    assert (count.first and (count.first.step, count.first.element)) == found


def test_what_was_not_kept_is_not_known_and_never_called_equal(tmp_path: Path) -> None:
    a = trace_of_values(tmp_path / "a", [step()])
    b = trace_of_values(tmp_path / "b", [step({17: 99}, rewards=(1, 0, 0, 1, 1))], keeps=False)
    counts = attribute(a, b)
    assert counts[TOKENS] == Count(0, 0, 1, Element(0, 0, "completions.tokens", (4, 6), None))
    assert not counts[TOKENS].is_equal
    assert counts[REWARDS].num_unknown == 1
    assert counts[ADVANTAGE_SIGNS] == Count(5)


def test_completions_of_another_length_are_a_change(tmp_path: Path) -> None:
    a = trace_of_values(tmp_path / "a", [[tokens(*range(24))]])
    b = trace_of_values(tmp_path / "b", [[tokens(*range(28), shape=(4, 7))]])
    assert attribute(a, b)[TOKENS] == Count(0, 0, 1, Element(0, 0, "completions.tokens", (4, 6), None))
    nothing = trace_of_values(tmp_path / "c", [[floats("loss", 1.0)]])
    for one, other in ((a, nothing), (nothing, a)):
        assert attribute(one, other)[TOKENS].num_unknown == 1


@pytest.mark.parametrize("name", ["batch", "batch.0", "batch.input_ids"])
def test_what_was_read_is_a_batch_and_no_tokens(tmp_path: Path, name: str) -> None:
    def batch(last: int) -> list[Kept]:
        text = value("rollout", "batch.text", "text", (3,), b"yes")
        return [value("rollout", name, "i64", (2, 2), struct.pack("<4q", 1, 2, 3, last)), text]

    a = trace_of_values(tmp_path / "a", [batch(4)])
    assert attribute(a, trace_of_values(tmp_path / "b", [batch(4)])) == {BATCHES: Count(4)}
    assert attribute(a, trace_of_values(tmp_path / "c", [batch(5)])) == {
        BATCHES: Count(4, 1, 0, Element(0, 0, name, (2, 2), 3))
    }


def test_parts_count_where_there_is_no_whole(tmp_path: Path) -> None:
    def parts(*digests: bytes) -> list[RecordedValue]:
        whole, _ = tokens(*range(24))
        return [
            whole._replace(digest=digest, occurrence=number, scope=Scope.PHYSICAL)
            for number, digest in enumerate(digests)
        ]

    one, other = parts(bytes(16), bytes(16)), parts(bytes(16), b"\1" * 16)
    found = attribute(trace(tmp_path / "a", [one]), trace(tmp_path / "b", [other]))[TOKENS]
    assert (found.num_compared, found.num_unknown) == (24, 1)
    whole, _ = tokens(*range(24))
    found = attribute(trace(tmp_path / "c", [[*one, whole]]), trace(tmp_path / "d", [[*other, whole]]))[TOKENS]
    assert found == Count(24)


def test_ranks_have_parts_of_their_own_and_wholes_in_common(tmp_path: Path) -> None:
    whole, _ = floats("reward", *range(5))
    part = tokens(*range(24))[0]._replace(scope=Scope.PHYSICAL)
    sick = part._replace(digest=bytes(16))
    a = trace_of_ranks(tmp_path / "a", [[[whole, part]], [[whole, part]]])
    b = trace_of_ranks(tmp_path / "b", [[[whole, part]], [[whole, sick]]])
    counts = attribute(a, b)
    assert counts[REWARDS] == Count(5)
    assert counts[TOKENS] == Count(24, 0, 1, Element(0, 1, "completions.tokens", (4, 6), None))
    alone = trace(tmp_path / "c", [[whole, part]])
    assert attribute(alone, b) == {REWARDS: Count(5)}
    drifted = trace_of_ranks(tmp_path / "d", [[[whole]], [[whole._replace(digest=bytes(16))]]])
    assert attribute(a, drifted)[REWARDS].num_unknown == 1


def test_tokens_that_ranks_of_one_trace_have_otherwise_are_unknown(tmp_path: Path) -> None:
    """Rank 0 has those of the other trace; what rank 1 has has no counterpart there."""
    ids, others = tokens(*range(24))[0], tokens(*range(1, 25))[0]
    alone = trace(tmp_path / "a", [[ids]])
    apart, alike = (trace_of_ranks(tmp_path / name, [[[ids]], [[of_1]]]) for name, of_1 in (("b", others), ("c", ids)))
    for a, b in ((alone, apart), (apart, alone)):
        assert attribute(a, b)[TOKENS] == Count(24, 0, 1, Element(0, 1, ids.name, ids.shape, None))
    assert attribute(alone, alike)[TOKENS] == Count(24)
