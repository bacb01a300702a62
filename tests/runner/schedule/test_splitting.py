"""Which files run in parts, and the tests of each part: every test once, what belongs together stays together."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runner.need import Need
from harness.runner.report_file import ListedTest
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.splitting import (
    FileLoad,
    SplitReason,
    TestGroup,
    choose_files,
    group_tests,
    make_parts,
    plan_parts,
)
from tests.support.packing_cases import inventory

CPU, ONE, TWO, EIGHT = Need(), Need(1), Need(2), Need(8)
EIGHT_GPUS, FOUR_GPUS = (LeaseTable(inventory((num, "H200", 143.0)), num // 2) for num in (8, 4))
NEEDS = st.sampled_from((CPU, ONE, TWO, EIGHT, Need(1, memory_gb=40), Need(1, exclusive=True), Need(9)))
TIES = st.lists(st.sampled_from(("class a", "class b", "together c", "module-fixture d")), max_size=2).map(tuple)
LISTED = st.lists(st.tuples(NEEDS, TIES), min_size=1, max_size=40).map(
    lambda drawn: [ListedTest(f"t.py::test_{n}", need, ties) for n, (need, ties) in enumerate(drawn)]
)
SECONDS = st.floats(0, 100)
DURATIONS = st.dictionaries(st.integers(0, 40).map("t.py::test_{}".format), SECONDS)


def load(
    path: str, seconds: float, need: Need = ONE, *, is_measured: bool = True, asked: Sequence[int] = ()
) -> FileLoad:
    return FileLoad(path, need, seconds, is_measured, frozenset(asked))


@given(LISTED, DURATIONS, SECONDS, st.tuples(st.booleans(), st.booleans()), st.tuples(SECONDS, SECONDS))
def test_every_test_is_in_one_part_with_its_group_and_its_need(
    tests: list[ListedTest],
    durations_s: dict[str, float],
    expected_s: float,
    flags: tuple[bool, bool],
    bounds_s: tuple[float, float],
) -> None:
    groups = group_tests(tests, load("t.py", expected_s, EIGHT), durations_s)
    parts = make_parts(groups, EIGHT_GPUS, bounds_s, is_measured=flags[0], has_others=flags[1])
    assert sorted(nodeid for part in parts for nodeid in part.nodeids) == sorted(test.nodeid for test in tests)
    part_of = {nodeid: part for part in parts for nodeid in part.nodeids}
    for one in tests:
        assert not one.need.exceeds(part_of[one.nodeid].need)
        for other in tests:
            assert part_of[one.nodeid] is part_of[other.nodeid] or not set(one.ties) & set(other.ties)
    for group in groups:
        assert {part_of[nodeid].need for nodeid in group.nodeids} == {group.need}
    assert all(part.nodeids for part in parts)
    assert sum(part.seconds for part in parts) == pytest.approx(expected_s, abs=1e-6)


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=60), st.floats(0.5, 100), st.booleans())
def test_loads_are_within_the_longest_group_of_each_other(
    seconds: list[float], bound_s: float, has_others: bool
) -> None:
    groups = [TestGroup((f"t.py::test_{n}",), ONE, each) for n, each in enumerate(seconds)]
    parts = make_parts(groups, EIGHT_GPUS, (0.0, bound_s), is_measured=True, has_others=has_others)
    loads = [part.seconds for part in parts]
    assert max(loads) - min(loads) <= max(seconds) + 1e-6
    assert len(parts) <= (16 if has_others else 8)
    assert len(parts) == 1 or sum(loads) / len(parts) >= 1.0


def test_a_file_that_exceeds_the_area_bound_dominates() -> None:
    assert choose_files([load("a", 40)], EIGHT_GPUS) == {"a": SplitReason.DOMINATES}
    assert choose_files([load("a", 40), *(load(f"b{n}", 40) for n in range(7))], EIGHT_GPUS) == {}, "as long as others"
    assert choose_files([load("a", 5.5)], EIGHT_GPUS) == {}, "less than 5 s would be won"
    assert choose_files([load("a", 40, EIGHT)], EIGHT_GPUS) == {}, "it has all GPUs anyway"
    assert choose_files([load("a", 40, Need(1, exclusive=True))], EIGHT_GPUS) == {}
    assert choose_files([load("a", 40, CPU), load("b", 40)], EIGHT_GPUS) == dict.fromkeys("ba", SplitReason.DOMINATES)
    assert choose_files([load("a", 40, is_measured=False), load("b", 1)], EIGHT_GPUS) == {}, (
        "an estimate is no evidence"
    )


def test_few_files_of_unknown_duration_are_split() -> None:
    unknown = [load(f"f{n}", 30, is_measured=False) for n in range(8)]
    assert choose_files(unknown, EIGHT_GPUS) == {}, "a file for each GPU"
    assert choose_files(unknown[:7], EIGHT_GPUS) == dict.fromkeys([f"f{n}" for n in range(7)], SplitReason.FEW_FILES)


def test_a_file_whose_tests_need_different_numbers_of_gpus_is_split() -> None:
    assert choose_files([load("a", 1, EIGHT, asked=(1, 8))], EIGHT_GPUS) == {"a": SplitReason.NEEDS_DIFFER}
    assert choose_files([load("a", 1, EIGHT, asked=(0, 8))], EIGHT_GPUS) == {}, "a test without a marker may use a GPU"
    listed = [ListedTest("t.py::a", ONE), ListedTest("t.py::b", EIGHT), ListedTest("t.py::c", CPU)]
    groups = group_tests(listed, load("t.py", 3.0, EIGHT), {})
    parts = make_parts(groups, EIGHT_GPUS, (0.0, 3.0), is_measured=False, has_others=False)
    assert [(part.nodeids, part.need) for part in parts] == [(("t.py::b",), EIGHT), (("t.py::a", "t.py::c"), ONE)]
    parts = make_parts(groups, FOUR_GPUS, (0.0, 3.0), is_measured=False, has_others=False)
    assert [part.need for part in parts] == [ONE, EIGHT], "the first part, which runs new tests, can run here"
    given_need = group_tests(listed, FileLoad("t.py", TWO, 3.0, is_measured=True, is_given=True), {})
    assert {group.need for group in given_need} == {TWO}, "the needs table wins over markers"


def test_durations_decide_the_parts_where_they_are_known() -> None:
    listed = [ListedTest(f"t.py::{name}", ONE) for name in "abcd"]
    groups = group_tests(listed, load("t.py", 16.0), {"t.py::a": 3.0, "t.py::b": 1.0})
    assert [group.seconds for group in groups] == pytest.approx([6.0, 2.0, 4.0, 4.0]), "the mean for unknown ones"
    parts = make_parts(groups, EIGHT_GPUS, (0.0, 8.0), is_measured=True, has_others=False)
    assert [part.nodeids for part in parts] == [("t.py::a", "t.py::b"), ("t.py::c", "t.py::d")]


def test_parts_are_not_shorter_than_a_second_or_four_unknown_tests() -> None:
    groups = [TestGroup((f"t.py::{n}",), ONE, 0.5) for n in range(9)]
    assert len(make_parts(groups, EIGHT_GPUS, (0.0, 0.1), is_measured=True, has_others=False)) == 4
    assert len(make_parts(groups, EIGHT_GPUS, (0.0, 0.1), is_measured=False, has_others=False)) == 2
    assert len(make_parts(groups, EIGHT_GPUS, (0.0, 1e-310), is_measured=False, has_others=False)) == 2


@pytest.mark.parametrize(
    ("tests", "seconds", "num_parts", "obstacle"),
    [
        ([("a", ())], 40.0, 1, "it has one test"),
        ([("a", ("class A",)), ("b", ("class A",))], 40.0, 1, "its tests run in one process (class A)"),
        ([("a", ()), ("b", ())], 1.5, 1, "its parts would take less than 1 s"),
        ([], 40.0, 1, "its tests could not be listed before the run"),
        ([("a", ()), ("b", ())], 40.0, 2, ""),
    ],
)
def test_a_file_that_runs_whole_says_why(
    tests: list[tuple[str, tuple[str, ...]]], seconds: float, num_parts: int, obstacle: str
) -> None:
    listed = [ListedTest(f"t.py::{name}", ONE, ties) for name, ties in tests]
    reasons = {"t.py": SplitReason.DOMINATES}
    ((split, parts),) = plan_parts([load("t.py", seconds)], reasons, {"t.py": listed}, {}, EIGHT_GPUS).values()
    assert (split.num_parts, max(1, len(parts)), split.obstacle) == (num_parts, num_parts, obstacle)
    assert (split.reason, split.expected_s) == (SplitReason.DOMINATES, seconds)
