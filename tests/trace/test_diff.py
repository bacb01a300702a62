"""Verdicts: a single bit is found wherever it is, and nothing that does not count is taken for a divergence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.trace.chain import Leaf, Scope
from harness.trace.diff import diff
from harness.trace.digests import SHARDSUM_128
from harness.trace.format import HEADER, done_payload, frame, step_payload
from harness.trace.leaf_diff import StepDifference, compare_leaves
from harness.trace.manifest import Fingerprint, Manifest
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import Difference, Divergence, Kind
from tests.trace.traces import (
    LEAVES,
    SEEDED,
    Steps,
    any_leaves,
    flip_bit,
    leaf,
    manifest_of,
    scalar,
    steps_of,
    trace,
    trace_of_ranks,
    write,
)


def part(name: str, content: object) -> Leaf:
    return leaf("forward", name, content, scope=Scope.PHYSICAL)


# ------------------------------------------------------------------------------------------------- one rank, one bit


def test_a_trace_is_equal_to_one_of_the_same_bits(tmp_path: Path) -> None:
    a, b = trace(tmp_path / "a", steps_of(4)), trace(tmp_path / "b", steps_of(4))
    verdict = diff(a, b)
    assert (verdict.kind, verdict.num_steps, verdict.num_steps_different, verdict.first) == (Kind.EQUAL, 4, 0, None)


@settings(SEEDED, max_examples=25)
@given(st.integers(0, 9), st.integers(0, len(LEAVES) - 1), st.booleans())
def test_a_single_bit_is_named_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, step: int, index: int, is_swapped: bool
) -> None:
    directory = tmp_path_factory.mktemp("diff")
    phase, name = LEAVES[index]
    a = trace(directory / "a", steps_of(10))
    b = trace(directory / "b", steps_of(10, flip_bit(step, phase, name)))
    verdict = diff(b, a) if is_swapped else diff(a, b)
    first = verdict.first
    assert verdict.kind is Kind.DIVERGED
    assert first is not None
    assert first.a is not None
    assert (first.step, first.what, first.rank) == (step, Difference.VALUE, 0)
    assert (first.a.phase, first.a.name, first.num_different, first.num_leaves) == (phase, name, 1, len(LEAVES))
    before = (first.last_equal.phase, first.last_equal.name) if first.last_equal else None
    assert before == (LEAVES[index - 1] if index else None)
    assert verdict.num_steps_different == 10 - step


def test_of_several_the_one_recorded_first_is_named(tmp_path: Path) -> None:
    def change(step: int, each: Leaf) -> Leaf:
        for name in ("logprobs", "layers.1.weight"):
            each = flip_bit(1, each.phase, name)(step, each)
        return each

    first = diff(trace(tmp_path / "a", steps_of(2)), trace(tmp_path / "b", steps_of(2, change))).first
    assert first is not None
    assert first.a is not None
    assert (first.a.name, first.num_different) == ("logprobs", 2)


def test_the_order_of_recording_does_not_count(tmp_path: Path) -> None:
    backwards = [list(reversed(leaves)) for leaves in steps_of(3)]
    assert diff(trace(tmp_path / "a", steps_of(3)), trace(tmp_path / "b", backwards)).kind is Kind.EQUAL


def test_known_values_are_told_by_their_distance(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", [[scalar("loss", "loss", 0x3F800000)]])
    b = trace(tmp_path / "b", [[scalar("loss", "loss", 0x3F800003)]])
    verdict = diff(a, b)
    assert verdict.first is not None
    assert verdict.first.value is not None
    assert (verdict.first.value.max_ulp, verdict.first.value.a) == (3, "1.0")
    assert [(point.step, point.name) for point in verdict.curve] == [(0, "loss")]


@pytest.mark.parametrize(("bits", "is_payload_only"), [(0x7FC00001, True), (0xFFC00000, True), (0x7F800000, False)])
def test_nan_payloads_are_a_class_of_their_own_and_diverge(tmp_path: Path, bits: int, is_payload_only: bool) -> None:
    a = trace(tmp_path / "a", [[scalar("loss", "loss", 0x7FC00000)]] * 2)
    b = trace(tmp_path / "b", [[scalar("loss", "loss", bits)]] * 2)
    verdict = diff(a, b)
    assert (verdict.kind, verdict.is_nan_payload_only) == (Kind.DIVERGED, is_payload_only)
    later = trace(tmp_path / "c", [[scalar("loss", "loss", 0x7FC00001)], [scalar("loss", "loss", 1)]])
    assert not diff(a, later).is_nan_payload_only, "the second step differs in more than a payload"


def test_the_sign_of_zero_counts(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", [[scalar("loss", "loss", 0)]])
    b = trace(tmp_path / "b", [[scalar("loss", "loss", 0x80000000)]])
    verdict = diff(a, b)
    assert verdict.kind is Kind.DIVERGED
    assert verdict.first is not None
    assert verdict.first.value is not None
    assert verdict.first.value.max_ulp == 0


# --------------------------------------------------------------------------------------------------- other structure


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda each: each._replace(dtype="bf16"), Difference.DTYPE),
        (lambda each: each._replace(shape=(32, 64)), Difference.SHAPE),
        (lambda each: None, Difference.LEAF_ONLY_IN_A),
    ],
)
def test_other_leaves_are_divergences(tmp_path: Path, change: Callable[[Leaf], Leaf | None], what: Difference) -> None:
    def at_step_1(step: int, each: Leaf) -> Leaf | None:
        return change(each) if (step, each.name) == (1, "layers.1.weight") else each

    a, b = trace(tmp_path / "a", steps_of(3)), trace(tmp_path / "b", steps_of(3, at_step_1))
    for verdict, expected in ((diff(a, b), what), (diff(b, a), mirrored(what))):
        assert verdict.kind is Kind.DIVERGED
        assert verdict.first is not None
        assert (verdict.first.step, verdict.first.what) == (1, expected)
        assert verdict.first.last_equal is not None
        assert verdict.first.last_equal.name == "layers.0.weight"


def mirrored(what: Difference) -> Difference:
    pairs = {Difference.LEAF_ONLY_IN_A: Difference.LEAF_ONLY_IN_B, Difference.STEP_ONLY_IN_A: Difference.STEP_ONLY_IN_B}
    return pairs.get(what, what)


def test_a_step_more_is_a_divergence_where_both_are_complete(tmp_path: Path) -> None:
    a, b = trace(tmp_path / "a", steps_of(3)), trace(tmp_path / "b", steps_of(4))
    verdict = diff(a, b)
    assert verdict.first is not None
    assert (verdict.kind, verdict.first.step, verdict.first.what) == (Kind.DIVERGED, 3, Difference.STEP_ONLY_IN_B)


@SEEDED
@given(any_leaves, any_leaves)
def test_leaves_are_alike_exactly_if_nothing_differs(a: list[Leaf], b: list[Leaf]) -> None:
    found, back = compare_leaves(a, b), compare_leaves(b, a)
    assert compare_leaves(a, a) == StepDifference(None, None, 0, len(a), 0, 0, False)
    counted = (found.num_different, found.num_incomparable)
    assert counted == (back.num_different, back.num_incomparable)
    same = {(each.scope, each.key): each for each in a} == {(each.scope, each.key): each for each in b}
    assert (counted == (0, 0)) == same
    assert (found.first is None) == (found.num_different == 0)


# --------------------------------------------------------------------------------- incomplete, and not to be compared


def test_as_far_as_an_incomplete_trace_goes(tmp_path: Path) -> None:
    whole = trace(tmp_path / "a", steps_of(4))
    cut = trace(tmp_path / "b", steps_of(2), complete=False)
    verdict = diff(whole, cut)
    assert (verdict.kind, verdict.num_steps, verdict.first) == (Kind.INCOMPLETE, 2, None)
    assert verdict.reasons == ("B: its program did not end in order", "B: rank-0.log was not closed")
    other = trace(tmp_path / "c", steps_of(2, flip_bit(1, "loss", "loss")), complete=False)
    assert diff(whole, other).kind is Kind.DIVERGED


def test_two_traces_of_nothing_prove_nothing(tmp_path: Path) -> None:
    verdict = diff(trace(tmp_path / "a", []), trace(tmp_path / "b", []))
    assert (verdict.kind, verdict.reasons) == (Kind.INCOMPLETE, ("no step was recorded",))


def test_another_identity_is_not_comparable_and_still_shown(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(2))
    same = trace(tmp_path / "b", steps_of(2), manifest_of(identity={"seed": "8"}))
    verdict = diff(a, same)
    assert (verdict.kind, verdict.reasons, verdict.first) == (Kind.NOT_COMPARABLE, ("identity differs: seed",), None)
    other = trace(tmp_path / "c", steps_of(2, flip_bit(1, "loss", "loss")), manifest_of(identity={"seed": "8"}))
    verdict = diff(a, other)
    assert verdict.kind is Kind.NOT_COMPARABLE
    assert verdict.first is not None
    assert verdict.first.step == 1


def test_other_numerics_excuse_a_difference_and_equal_bits_need_no_excuse(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(2), manifest_of(numerics={"python": "3.11"}))
    b = trace(tmp_path / "b", steps_of(2), manifest_of(numerics={"python": "3.12"}))
    c = trace(tmp_path / "c", steps_of(2, flip_bit(1, "loss", "loss")), manifest_of(numerics={"python": "3.12"}))
    assert diff(a, b).kind is Kind.EQUAL
    verdict = diff(a, c)
    assert (verdict.kind, verdict.reasons) == (Kind.NOT_COMPARABLE, ("numerics differ: python",))
    assert verdict.first is not None


@pytest.mark.parametrize("part", ["subject", "perturbation"])
def test_other_code_and_other_threads_are_no_excuse(tmp_path: Path, part: str) -> None:
    a = trace(tmp_path / "a", steps_of(2), manifest_of(**{part: {"x": "1"}}))
    b = trace(tmp_path / "b", steps_of(2, flip_bit(1, "loss", "loss")), manifest_of(**{part: {"x": "2"}}))
    verdict = diff(a, b)
    assert (verdict.kind, list(verdict.fingerprints)) == (Kind.DIVERGED, [part])


def test_digests_of_different_algorithms_are_never_compared(tmp_path: Path) -> None:
    def other_algorithm(step: int, each: Leaf) -> Leaf:
        each = each._replace(algorithm=SHARDSUM_128, digest=bytes(16)) if each.phase == "backward" else each
        return flip_bit(1, "optimizer", "layers.0.weight")(step, each) if flips and step == 1 else each

    a = trace(tmp_path / "a", steps_of(3))
    flips = False
    verdict = diff(a, trace(tmp_path / "b", steps_of(3, other_algorithm)))
    assert verdict.kind is Kind.NOT_COMPARABLE
    assert verdict.reasons == ("digests of different algorithms: 6 leaves cannot be compared",)
    assert (verdict.first, verdict.num_steps_different) == (None, 0)
    flips = True
    verdict = diff(a, trace(tmp_path / "c", steps_of(3, other_algorithm)))
    assert (verdict.kind, verdict.num_steps_different) == (Kind.DIVERGED, 1)
    assert verdict.first is not None
    assert verdict.first.last_equal is not None
    assert (verdict.first.step, verdict.first.last_equal.name) == (1, "loss")


def test_without_a_manifest_nothing_is_claimed(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", steps_of(2)), write(tmp_path / "b", steps_of(2, flip_bit(1, "loss", "loss")))
    (b / "manifest.json").unlink()
    verdict = diff(read_trace(a), read_trace(b))
    assert (verdict.kind, verdict.reasons) == (Kind.NOT_COMPARABLE, ("the identity of B is not known",))
    (a / "manifest.json").unlink()
    assert diff(read_trace(a), read_trace(a)).kind is Kind.INCOMPLETE


def test_a_root_that_is_not_that_of_its_leaves_is_no_divergence(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(1))
    (tmp_path / "b").mkdir()
    head = a.ranks[0].heads[0]
    wrong = step_payload(0, bytes(16), head.chain, steps_of(1)[0])
    (tmp_path / "b" / "rank-0.log").write_bytes(HEADER + frame(wrong) + frame(done_payload(1)))
    (tmp_path / "b" / "manifest.json").write_text((tmp_path / "a" / "manifest.json").read_text())
    verdict = diff(a, read_trace(tmp_path / "b"))
    assert (verdict.kind, verdict.first) == (Kind.NOT_COMPARABLE, None)
    assert verdict.reasons == (
        "B, rank 0: the chain of step 0 does not follow from the one before",
        "the roots of step 0 differ, its leaves do not: a root is not that of its leaves",
    )


# -------------------------------------------------------------------------------------------------------------- ranks


def test_the_rank_that_differs_first_is_named(tmp_path: Path) -> None:
    def of_rank(rank: int, is_sick: bool) -> Steps:
        made = []
        for step in range(3):
            sick = is_sick and step >= 1
            parts = [part(f"hidden.{n}", (rank, step, n, sick and (rank, n) >= (1, 1))) for n in range(3)]
            made.append([*parts, leaf("backward", "w", (step, sick))])
        return made

    a = trace_of_ranks(tmp_path / "a", [of_rank(0, False), of_rank(1, False)])
    b = trace_of_ranks(tmp_path / "b", [of_rank(0, True), of_rank(1, True)])
    first = diff(a, b).first
    assert first is not None
    assert first.a is not None
    assert (first.step, first.rank, first.ranks, first.a.name) == (1, 1, (0, 1), "hidden.1")
    assert first.last_equal is not None
    assert (first.last_equal.name, first.num_different, first.num_leaves) == ("hidden.0", 3, 4)


def test_ranks_parts_do_not_count_and_are_told(tmp_path: Path) -> None:
    def steps(content: int) -> Steps:
        return [[leaf("loss", "loss", step), part("hidden", content if step else 0)] for step in range(2)]

    a, b = trace(tmp_path / "a", steps(1)), trace(tmp_path / "b", steps(2))
    verdict = diff(a, b)
    assert (verdict.kind, verdict.first) == (Kind.EQUAL, None)
    assert verdict.part is not None
    assert verdict.part.a is not None
    assert (verdict.part.step, verdict.part.a.name, verdict.part.num_leaves) == (1, "hidden", 1)
    assert diff(a, a).part is None


def test_runs_of_other_world_sizes_can_be_equal(tmp_path: Path) -> None:
    logical = steps_of(3)
    alone = trace(tmp_path / "a", logical)
    shared = trace_of_ranks(
        tmp_path / "b",
        [
            [[each for n, each in enumerate(leaves) if n % 2 == rank] + [part("hidden", rank)] for leaves in logical]
            for rank in range(2)
        ],
    )
    everywhere = trace_of_ranks(tmp_path / "c", [logical, logical])
    for other in (shared, everywhere):
        for verdict in (diff(alone, other), diff(other, alone)):
            assert (verdict.kind, verdict.num_steps_different, verdict.notes) == (Kind.EQUAL, 0, ())


def test_runs_of_other_world_sizes_diverge_where_their_logical_leaves_do(tmp_path: Path) -> None:
    alone = trace(tmp_path / "a", steps_of(3))
    sick = steps_of(3, flip_bit(1, "backward", "layers.1.weight"))
    shared = trace_of_ranks(
        tmp_path / "b",
        [[[each for n, each in enumerate(leaves) if n % 2 == rank] for leaves in sick] for rank in range(2)],
    )
    verdict = diff(alone, shared)
    first = verdict.first
    assert first is not None
    assert first.a is not None
    assert (verdict.kind, verdict.num_steps_different) == (Kind.DIVERGED, 2)
    assert (first.step, first.rank, first.ranks, first.a.name) == (1, None, (), "layers.1.weight")


def test_replicas_that_disagree_are_told(tmp_path: Path) -> None:
    alone = trace(tmp_path / "a", steps_of(1))
    apart = trace_of_ranks(tmp_path / "b", [steps_of(1), steps_of(1, flip_bit(0, "backward", "layers.1.weight"))])
    verdict = diff(alone, apart)
    assert verdict.notes == (
        "in B, ranks have backward layers.1.weight of step 0 otherwise; the lowest rank's was compared",
    )
    together = trace_of_ranks(tmp_path / "c", [steps_of(1), steps_of(1)])
    first = diff(together, apart).first
    assert first is not None
    assert (first.rank, first.ranks) == (1, (1,))


# ------------------------------------------------------------------------------------- ranks that have not every step


def uneven(directory: Path, *num_steps: int, sick: int | None = None, complete: bool = True) -> Trace:
    """A trace whose ranks have so many steps; one bit differs in step 3 of the rank `sick`."""
    manifest = replace(manifest_of(), world_size=len(num_steps))
    for rank, number in enumerate(num_steps):
        change = flip_bit(3 if rank == sick else 99, "loss", "loss")
        write(directory, steps_of(number, change), manifest, rank=rank, complete=complete)
    return read_trace(directory)


def test_a_rank_that_lacks_a_step_of_its_counterpart_has_diverged(tmp_path: Path) -> None:
    a, b = uneven(tmp_path / "a", 5, 5), uneven(tmp_path / "b", 5, 3)
    for verdict, what in ((diff(a, b), Difference.STEP_ONLY_IN_A), (diff(b, a), Difference.STEP_ONLY_IN_B)):
        assert (verdict.kind, verdict.num_steps, verdict.num_steps_different) == (Kind.DIVERGED, 5, 2)
        assert verdict.first == Divergence(3, what, rank=1, ranks=(1,))
        assert not verdict.is_nan_payload_only
    assert diff(b, uneven(tmp_path / "c", 5, 3)).kind is Kind.EQUAL


def test_a_missing_frame_comes_before_the_leaves_of_other_ranks(tmp_path: Path) -> None:
    a, b = uneven(tmp_path / "a", 5, 5, 5), uneven(tmp_path / "b", 5, 5, 3, sick=0)
    assert diff(a, b).first == Divergence(3, Difference.STEP_ONLY_IN_A, rank=2, ranks=(0, 2))


def test_the_last_steps_of_some_ranks_only(tmp_path: Path) -> None:
    a, b = uneven(tmp_path / "a", 3, 5), uneven(tmp_path / "b", 3, 3)
    verdict = diff(a, b)
    assert verdict.first == Divergence(3, Difference.STEP_ONLY_IN_A, rank=1, ranks=(1,))
    assert (verdict.num_steps, verdict.num_steps_different) == (5, 2)
    assert diff(uneven(tmp_path / "c", 4, 4), b).first == Divergence(3, Difference.STEP_ONLY_IN_A), "every rank has it"


def test_a_rank_whose_log_was_not_closed_may_have_come_further(tmp_path: Path) -> None:
    a, cut = uneven(tmp_path / "a", 5, 5), uneven(tmp_path / "b", 5, 3, complete=False)
    verdict = diff(a, cut)
    assert (verdict.kind, verdict.num_steps, verdict.first) == (Kind.INCOMPLETE, 3, None)
    assert "B: rank-1.log was not closed" in verdict.reasons


def test_a_rank_that_was_closed_early_in_a_program_that_fell_is_incomplete(tmp_path: Path) -> None:
    a, fell = uneven(tmp_path / "a", 5, 5), uneven(tmp_path / "b", 5, 3)
    assert fell.manifest is not None
    fell = replace(fell, manifest=replace(fell.manifest, complete=False))
    verdict = diff(a, fell)
    assert (verdict.kind, verdict.num_steps, verdict.num_steps_different) == (Kind.INCOMPLETE, 5, 0)
    sick = replace(uneven(tmp_path / "c", 5, 3, sick=0), manifest=fell.manifest)
    first = diff(a, sick).first
    assert first is not None
    assert (first.step, first.what, first.rank) == (3, Difference.VALUE, 0)


def test_a_level_is_kept(tmp_path: Path) -> None:
    found = trace(tmp_path / "a", [], Manifest(Fingerprint(), level="invariant"))
    assert found.manifest is not None
    assert found.manifest.level == "invariant"
