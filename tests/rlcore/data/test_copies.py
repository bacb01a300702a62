"""A reward function may change what it is given: no other function, completion or step is affected."""

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.data.rewards import Reward
from rlcore.data.scoring import score
from tests.rlcore.data.completions import completion, completions

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(-1, 1), st.text("ab", max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=3), st.tuples(inner)
    ),
    max_leaves=8,
)


def ruin(value: Any) -> None:
    """Empty every list and mapping, the inner ones first."""
    if isinstance(value, dict | list | tuple):
        for inner in list(value.values() if isinstance(value, dict) else value):
            ruin(inner)
    if isinstance(value, dict | list):
        value.clear()


def test_a_function_that_consumes_a_prompts_test_cases_judges_each_completion_of_it_by_all() -> None:
    def passed(completions: list[str], cases: list[dict[str, list[str]]]) -> list[float]:
        values = []
        for text, each in zip(completions, cases, strict=True):
            num_passed = 0
            while each["expected"]:
                num_passed += each["expected"].pop() == text
            values.append(float(num_passed))
        return values

    columns = {"cases": {"expected": ["yes", "no", "yes"]}}
    group = [completion("yes", columns, sample_index=index) for index in range(4)]
    for each in group[1:]:  # completions of one prompt share it
        each.request.prompt.columns["cases"] = columns["cases"]  # type: ignore[index]

    for step in range(2):
        assert score([Reward("passed", passed)], group, step=step).rewards == [2.0] * 4
    assert columns == {"cases": {"expected": ["yes", "no", "yes"]}}


@settings(max_examples=60)
@given(st.lists(JSON, min_size=1, max_size=4))
def test_whatever_a_function_does_to_its_arguments_the_next_one_and_the_task_have_them_whole(values: list[Any]) -> None:
    seen: dict[str, Any] = {}

    def destroys(**given: Any) -> list[float]:
        for column in given.values():
            ruin(column)
        return [0.0] * len(values)

    def looks(**given: Any) -> list[float]:
        seen.update(given)
        return [0.0] * len(values)

    before, batch = copy.deepcopy(values), completions(["x"] * len(values), column=values)
    score([Reward("destroys", destroys), Reward("looks", looks)], batch, step=0)

    assert seen["column"] == before
    assert seen["completions"] == ["x"] * len(values)
    assert seen["completion_ids"] == [[ord("x"), 0]] * len(values)
    assert [each.request.prompt.columns["column"] for each in batch] == before
