"""The plugin's markers against real pytest processes: what a file needs, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plugin import NOTHING, MarkError, merge_needs, need_of_mark
from harness.runner.need import Need

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
Record = dict[str, Any]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(pytester: pytest.Pytester, *args: str) -> tuple[pytest.RunResult, list[Record]]:
    report = pytester.path / "report.jsonl"
    command = ["-p", "harness.plugin", f"--rlharness-report={report}", "--strict-markers", "-Werror", *args]
    result = pytester.runpytest_subprocess(*command)
    return result, [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def of_kind(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record["k"] == kind]


def test_only_what_remains_after_deselection_counts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        @pytest.mark.gpus(8)
        def test_big(): pass
        @pytest.mark.gpus(2)
        def test_small(): pass
    """)
    _, records = run(pytester, "-k", "small")
    [collected] = of_kind(records, "collected")
    assert collected["need"]["gpus"] == 2
    assert [nodeid.partition("::")[2] for nodeid in collected["nodeids"]] == ["test_small"]


def test_the_closest_marker_wins_and_a_file_needs_the_maximum(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        pytestmark = pytest.mark.gpus(8, exclusive=True)
        @pytest.mark.gpus(2, memory_gb=40)
        class TestA:
            def test_class(self): pass
            @pytest.mark.gpus(1, model="h100", min_capability=(9, 0))
            def test_own(self): pass
        @pytest.mark.parametrize("n", [pytest.param(4, marks=pytest.mark.gpus(4, memory_gb=10, model="H100"))])
        def test_param(n): pass
    """)
    _, records = run(pytester)
    assert of_kind(records, "collected")[0]["need"] == {
        "gpus": 4,
        "memory_gb": 40.0,
        "model": "h100",
        "min_capability": [9, 0],
        "exclusive": False,
        "shared": False,
    }


@pytest.mark.full
@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("gpus(-1)", "number of GPUs -1; legal: a whole number, 0 or more"),
        ("gpus('two')", "number of GPUs 'two'"),
        ("gpus(True)", "number of GPUs True"),
        ("gpus", "lacks the number of GPUs"),
        ("gpus(1, 2)", "takes one number"),
        ("gpus(1, memory=3)", "unknown keyword 'memory'; legal: memory_gb, model, min_capability, exclusive"),
        ("gpus(1, memory_gb=-1)", "memory_gb -1"),
        ("gpus(1, model=3)", "model 3"),
        ("gpus(1, min_capability='hopper')", "min_capability 'hopper'; legal: 9.0, '9.0' or (9, 0)"),
        ("gpus(1, exclusive=1)", "exclusive 1"),
        ("gpus(0, memory_gb=40)", "describes 0 GPUs"),
        ("gpus(1, memory_gb=12, shared=1)", "shared 1; legal: True or False"),
        ("gpus(2, memory_gb=12, shared=True)", "shared with 2 GPUs, memory_gb 12"),
        ("gpus(1, shared=True)", "shared with 1 GPUs, memory_gb 0"),
        ("gpus(1, memory_gb=12, shared=True, exclusive=True)", "exclusive True; legal: gpus(1, memory_gb=12"),
        ("timeout('soon')", "timeout marker: 'soon'; legal: a number of seconds"),
    ],
)
def test_a_wrong_marker_names_value_legal_and_test(pytester: pytest.Pytester, mark: str, said: str) -> None:
    pytester.makepyfile(f"import pytest\n@pytest.mark.{mark}\ndef test_it(): pass")
    result, records = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *::test_it: *{said.replace('[', '[[]')}*"])
    [error] = of_kind(records, "collect_error")
    assert said in error["text"]
    assert error["id"].endswith("::test_it")
    assert not of_kind(records, "collected")


def test_two_models_in_one_file_are_refused_by_both_names(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        @pytest.mark.gpus(1, model="A100")
        def test_a(): pass
        @pytest.mark.gpus(1, model="H100")
        def test_b(): pass
    """)
    result, _ = run(pytester)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *'A100' and 'H100'*split it*"])


def test_two_models_in_two_files_are_fine_for_plain_pytest(pytester: pytest.Pytester) -> None:
    for model in ("A100", "H100"):
        name = f"test_{model}.py"
        (pytester.path / name).write_text(f"import pytest\n@pytest.mark.gpus(1, model='{model}')\ndef test_a(): pass")
    result = pytester.runpytest_subprocess("-p", "harness.plugin")
    result.assert_outcomes(passed=2)


@pytest.mark.full
@pytest.mark.parametrize("timeout", ["no:timeout", "timeout"])
def test_the_markers_are_registered_with_and_without_pytest_timeout(pytester: pytest.Pytester, timeout: str) -> None:
    pytester.makepyfile("""
        import pytest
        @pytest.mark.gpus(1)
        @pytest.mark.timeout(7.5)
        def test_a(): pass
        @pytest.mark.timeout(timeout=3)
        def test_b(): pass
        @pytest.mark.timeout(0)
        def test_c(): pass
    """)
    result, records = run(pytester, "-p", timeout)
    assert result.ret == 0
    assert [record["timeout_s"] for record in of_kind(records, "start")] == [7.5, 3.0, None]
    listed = pytester.runpytest_subprocess("-p", "harness.plugin", "-p", timeout, "--markers").stdout.str()
    assert listed.count("@pytest.mark.timeout(") == listed.count("@pytest.mark.gpus(") == 1


marks = st.builds(
    lambda n, **kwargs: (n, {key: value for key, value in kwargs.items() if value is not None}),
    st.integers(1, 8),
    memory_gb=st.none() | st.floats(0, 200),
    model=st.none() | st.just("H100"),
    min_capability=st.none() | st.sampled_from([8.6, "9.0", (10, 0), [12, 1], 7]),
    exclusive=st.none() | st.booleans(),
)


@given(st.lists(marks, max_size=5))
def test_a_merged_need_satisfies_each_and_asks_for_nothing_else(given_marks: list[tuple[int, Record]]) -> None:
    needs = [need_of_mark((n,), kwargs) for n, kwargs in given_marks]
    merged = Need.from_json(merge_needs(needs))
    assert not any(Need.from_json(need).exceeds(merged) for need in needs)
    for field in ("gpus", "memory_gb", "model", "min_capability", "exclusive"):
        assert merged.to_json()[field] in [need[field] for need in [NOTHING, *needs]]


@given(st.lists(marks, max_size=5), st.randoms(use_true_random=False))
def test_the_order_of_needs_does_not_matter(given_marks: list[tuple[int, Record]], random: Any) -> None:
    needs = [need_of_mark((n,), kwargs) for n, kwargs in given_marks]
    shuffled = random.sample(needs, len(needs))
    assert merge_needs(needs) == merge_needs(shuffled) == merge_needs([merge_needs(needs), NOTHING])


@pytest.mark.parametrize("value", [9, 9.0, "9", "9.0", (9, 0), [9, 0]])
def test_a_capability_may_be_spelt_in_these_ways(value: object) -> None:
    assert need_of_mark((1,), {"min_capability": value})["min_capability"] == [9, 0]


@pytest.mark.parametrize("value", [-1, True, "9.", (9,), (9, -1), "٩", float("nan"), float("inf"), b"9"])
def test_other_capabilities_are_refused(value: object) -> None:
    with pytest.raises(MarkError, match="min_capability"):
        need_of_mark((1,), {"min_capability": value})
