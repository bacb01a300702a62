"""Leaves of one step: the fast way and the slow way say the same, and the first difference is the first."""

import io
import random
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trace.diff import StepDifference, compare_columns, compare_values
from harness.trace.format import Columns, FramePosition, RecordedValue, Scope, read_columns, step_payload
from tests.support.traces import SEEDED, any_leaves, recorded_value

ALL_SCOPES = st.sampled_from([tuple(Scope), (Scope.LOGICAL,), (Scope.PHYSICAL,)])


def columns(recorded_values: list[RecordedValue]) -> Columns:
    payload = step_payload(0, bytes(16), bytes(16), recorded_values)
    return read_columns(io.BytesIO(payload), FramePosition(0, len(payload)), len(recorded_values))


@pytest.mark.full
@SEEDED
@given(any_leaves, st.data(), ALL_SCOPES)
def test_columns_are_compared_as_leaves_are(
    recorded_values: list[RecordedValue], data: st.DataObject, scopes: Collection[Scope]
) -> None:
    digests = [data.draw(st.sampled_from([each.digest, bytes(16)])) for each in recorded_values]
    others = [each._replace(digest=digest) for each, digest in zip(recorded_values, digests, strict=True)]
    same(
        compare_columns(columns(recorded_values), columns(others), scopes),
        compare_values(recorded_values, others, scopes),
    )


@pytest.mark.full
@SEEDED
@given(any_leaves, any_leaves, st.randoms(use_true_random=False), ALL_SCOPES)
def test_columns_of_other_leaves_are_too(
    recorded_values: list[RecordedValue], more: list[RecordedValue], order: random.Random, scopes: Collection[Scope]
) -> None:
    taken = {(each.scope, each.key) for each in more}
    others = [
        *more,
        *(each for each in recorded_values if (each.scope, each.key) not in taken and order.random() < 0.8),
    ]
    order.shuffle(others)
    same(
        compare_columns(columns(recorded_values), columns(others), scopes),
        compare_values(recorded_values, others, scopes),
    )
    kept = [each for each in recorded_values if each in others and each.scope in scopes]
    num_unlike = sum(each.scope in scopes for each in recorded_values) - len(kept)
    found = compare_values(recorded_values, others, scopes)
    assert found.num_different + found.num_incomparable >= num_unlike


def same(fast: StepDifference, slow: StepDifference) -> None:
    assert (fast.num_different, fast.num_incomparable) == (slow.num_different, slow.num_incomparable)
    assert (fast.last_equal, fast.num_values) == (slow.last_equal, slow.num_values)
    assert fast.is_nan_payload_only == slow.is_nan_payload_only
    assert (fast.first is None) == (slow.first is None)
    if fast.first is not None and slow.first is not None:
        assert (fast.first.what, fast.first.a, fast.first.b) == (slow.first.what, slow.first.a, slow.first.b)


@pytest.mark.parametrize("index", [0, 1, 4095, 4096, 4500, 4999])
def test_of_thousands_the_right_one_is_found(index: int) -> None:
    recorded_values = [recorded_value("backward", str(number), number) for number in range(5000)]
    others = [
        *recorded_values[:index],
        recorded_values[index]._replace(digest=bytes(16)),
        *recorded_values[index + 1 :],
    ]
    found = compare_columns(columns(recorded_values), columns(others))
    assert found.first is not None
    assert (found.first.position, found.first.a, found.num_different) == (index, recorded_values[index], 1)
    assert found.last_equal == (recorded_values[index - 1] if index else None)
