"""Frames and payloads: what is written is read, and what is whole and wrong is its writer's mistake, named."""

import io
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import TraceError
from harness.trace.format import (
    CHAINED,
    PHASES,
    Columns,
    FramePosition,
    RecordedValue,
    Scope,
    StepHead,
    complete_frames,
    enc,
    fields_of,
    frame,
    read_columns,
    read_step_head,
    step_payload,
)
from tests.support.traces import SEEDED, any_leaves, names, recorded_value

ROOT, CHAIN = bytes(range(16)), bytes(range(16, 32))


def columns_of(payload: bytes) -> Columns:
    return read_columns(io.BytesIO(payload), FramePosition(0, len(payload)), head_of(payload).num_values)


def head_of(payload: bytes) -> StepHead:
    return read_step_head(io.BytesIO(payload), FramePosition(0, len(payload)))


def frames_of(data: bytes) -> list[bytes]:
    return [data[place.start : place.start + place.length] for place in complete_frames(io.BytesIO(data), len(data))]


@SEEDED
@given(any_leaves, st.integers(0, 2**64 - 1))
def test_a_step_is_read_as_it_was_written(recorded_values: list[RecordedValue], step: int) -> None:
    payload = step_payload(step, ROOT, CHAIN, recorded_values)
    head = head_of(payload)
    counts = [sum(each.scope is scope for each in recorded_values) for scope in Scope]
    assert (head.step, head.root, head.chain) == (step, ROOT, CHAIN)
    assert [head.num_logical, head.num_parts, head.num_shards, head.num_contexts] == counts
    assert head.num_values == len(recorded_values)
    found = columns_of(payload)
    assert found.values() == recorded_values
    assert [found.value(index) for index in range(len(recorded_values))] == recorded_values


@SEEDED
@given(any_leaves, st.data())
def test_phases_are_found_without_decoding(recorded_values: list[RecordedValue], data: st.DataObject) -> None:
    renamed = [each._replace(name=data.draw(st.sampled_from([each.name, *PHASES]))) for each in recorded_values]
    recorded_values = list({(each.scope not in CHAINED and each.scope, each.key): each for each in renamed}.values())
    found = columns_of(step_payload(0, ROOT, CHAIN, recorded_values))
    values = [(index, each) for index, each in enumerate(recorded_values) if each.scope is not Scope.CONTEXT]
    for end in range(len(recorded_values) + 1):
        assert found.phases(end) == tuple(dict.fromkeys(each.phase for index, each in values if index < end))
    wanted = data.draw(st.lists(st.sampled_from(PHASES), unique=True))
    assert sorted(found.of_phases(wanted)) == [(index, each) for index, each in values if each.phase in wanted]


@SEEDED
@given(st.lists(names))
def test_fields_are_read_as_they_were_joined(fields: list[str]) -> None:
    assert fields_of(enc(*fields)) == fields


@SEEDED
@given(st.binary(min_size=1, max_size=40), st.data())
def test_a_flipped_bit_ends_reading(payload: bytes, data: st.DataObject) -> None:
    whole = bytearray(frame(payload) + frame(b"next"))
    bit = data.draw(st.integers(0, 8 * len(frame(payload)) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    assert frames_of(bytes(whole)) == []


def test_a_frame_larger_than_the_pieces_it_is_summed_in() -> None:
    payload = random.Random(1).randbytes(200_000)
    assert frames_of(frame(payload) + frame(b"next")) == [payload, b"next"]
    damaged = bytearray(frame(payload))
    damaged[190_000] ^= 1
    assert frames_of(bytes(damaged)) == []


def test_what_cannot_be_written_is_said() -> None:
    short = RecordedValue("loss", "loss", 0, "f32", (), "raw", b"1234")
    with pytest.raises(TraceError, match="digest of loss has 4 bytes"):
        step_payload(0, ROOT, CHAIN, [short])
    parts = [recorded_value("loss", "loss", 1, scope=scope) for scope in (Scope.PHYSICAL, Scope.CONTEXT)]
    step_payload(0, ROOT, CHAIN, parts)
    for part in parts:
        with pytest.raises(TraceError, match="two values"):
            step_payload(0, ROOT, CHAIN, [part, part])


def wrong(lengths: list[int], descriptions: bytes, scope: int = 0) -> bytes:
    """A payload of leaves with these columns."""
    head = b"STEP" + struct.pack("<Q", 0) + ROOT + CHAIN + struct.pack("<I", len(lengths))
    fixed = bytes([scope] * len(lengths)) + bytes(16 * len(lengths)) + struct.pack(f"<{len(lengths)}I", *lengths)
    return head + fixed + descriptions


GOOD = enc("loss", "loss", "0", "f32", "", "raw")


@pytest.mark.parametrize(
    "payload",
    [
        wrong([len(GOOD) + 1], GOOD),
        wrong([len(GOOD)], GOOD + b"x"),
        wrong([len(GOOD), len(GOOD)], GOOD),
        wrong([3], b"abc"),
        wrong([5], b"\x09\0\0\0a"),
        wrong([5], b"\x01\0\0\0\xff"),
        wrong([len(GOOD)], GOOD, scope=7),
        wrong([len(enc("a"))], enc("a")),
        wrong([len(enc("loss", "loss", "x", "f32", "", "raw"))], enc("loss", "loss", "x", "f32", "", "raw")),
        wrong([len(enc("loss", "loss", "0", "f32", "2,", "raw"))], enc("loss", "loss", "0", "f32", "2,", "raw")),
    ],
)
def test_whole_and_wrong_is_named(payload: bytes) -> None:
    with pytest.raises(TraceError, match="violates the format"):
        columns_of(payload).values()
