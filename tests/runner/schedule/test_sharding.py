"""Shards: disjoint, together everything, balanced, the same whatever the order; refused texts; whole runs of shards."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.runner.schedule.packing import Shard, assign_shards, parse_shard, plan_shard
from tests.support.suite_runs import QUICK, run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
SUITES = st.dictionaries(st.text(max_size=6), st.floats(0, 1e6), max_size=30)
COUNTS = st.integers(1, 12)


@given(SUITES, COUNTS)
def test_shards_are_disjoint_and_together_the_suite(expected_s: dict[str, float], count: int) -> None:
    shards = [plan_shard(expected_s, Shard(number, count)) for number in range(1, count + 1)]
    assert sorted(path for paths, _ in shards for path in paths) == sorted(expected_s)
    assert len({plan.partition for _, plan in shards}) == 1
    assert {plan.num_suite_units for _, plan in shards} == {len(expected_s)}


@given(SUITES, COUNTS, st.randoms())
def test_the_order_of_collection_changes_nothing(expected_s: dict[str, float], count: int, random: object) -> None:
    items = list(expected_s.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert assign_shards(dict(items), count) == assign_shards(expected_s, count)


@given(SUITES, COUNTS)
def test_no_shard_exceeds_another_by_more_than_its_last_unit(expected_s: dict[str, float], count: int) -> None:
    assigned = assign_shards(expected_s, count)
    loads = {number: [s for path, s in expected_s.items() if assigned[path] == number] for number in assigned.values()}
    least = min((sum(load) for load in loads.values()), default=0.0) if len(loads) == count else 0.0
    for load in loads.values():
        assert sum(load) - min(load) <= least + 0.001 * len(expected_s)


def test_the_longest_comes_first_and_ties_go_by_path() -> None:
    expected_s = {"c": 5.0, "a": 5.0, "b": 5.0, "long": 9.0}
    assert assign_shards(expected_s, 2) == {"long": 1, "a": 2, "b": 2, "c": 1}
    assert list(assign_shards(dict.fromkeys("abcd", 0.0), 4).values()) == [1, 2, 3, 4], "not all on the first"


def test_another_duration_that_moves_a_unit_is_another_partition() -> None:
    one, other = ({"a": 1.0, "b": 2.0, "c": 3.0, "d": d} for d in (1.0, 9.0))
    assert plan_shard(one, Shard(1, 2))[1].partition != plan_shard(other, Shard(1, 2))[1].partition


@pytest.mark.parametrize("text", ["0/4", "5/4", "x", "", "1", "1/0", "-1/4", "1/4/2", " 1/4", "1/9999999"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_shard(text)
    assert refused.value.what == f"--shard {text or repr(text)}"
    assert refused.value.legal
    assert refused.value.remedy


@pytest.mark.full
def test_two_shards_run_every_file_once_and_plans_agree(tmp_path: Path) -> None:
    odd = {"test_a.py": "import time\ndef test_slow(): time.sleep(1)\n", "test_d.py": "import no_such_module\n"}
    write_suite(tmp_path, {f"test_{name}.py": QUICK for name in "bce"} | odd)
    planned, ran, partitions = [], [], set()
    for shard in ("1/2", "2/2"):
        plan = json.loads(run(tmp_path, "plan", "--gpus", "none", "--json", "--shard", shard).stdout)
        planned.append({*plan["order"], *(unit["path"] for unit in plan["never"])})
        done = run(tmp_path, "run", "--gpus", "none", "--plain", "--shard", shard)
        done.assert_sound()
        ran.append(set(done.outcomes))
        assert f"\n  shard {shard}\n" in done.stdout
        assert f"  {len(done.outcomes)} of 5 units, partition " in done.stdout
        (collected,) = done.of("collection_finished")
        partitions |= {collected["shard"]["partition"], plan["shard"]["partition"]}
    assert ran == planned
    assert sorted(path for paths in ran for path in paths) == [f"test_{name}.py" for name in "abcde"]
    assert len(partitions) == 1, "the second shard was cut as the first, although files have run since"


@pytest.mark.full
def test_a_shard_takes_node_ids_and_k_and_an_empty_one_succeeds(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_one(): pass\ndef test_two(): assert False\n"})
    words = ("run", "--gpus", "none", "test_a.py::test_one", "--shard")
    first, second = (run(tmp_path, *words, shard, "--", "-k", "one") for shard in ("1/2", "2/2"))
    assert (first.code, second.code) == (ExitCode.OK, ExitCode.OK)
    assert "1 of 1 unit" in first.stdout
    assert "0 of 1 unit" in second.stdout
    nothing = run(write_suite(tmp_path / "empty", {"x.txt": ""}), "run", "--gpus", "none", "--shard", "1/2")
    assert nothing.code == ExitCode.NOTHING_COLLECTED
