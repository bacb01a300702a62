"""Rewards by name: found, or told what there is instead; and those of other libraries, called as those call them."""

from pathlib import Path

import pytest

from rlcore.data.rewards import load_reward
from rlcore.data.scoring import score
from rlcore.errors import InvalidValueError, RewardError
from tests.rlcore.data import reward_examples
from tests.rlcore.data.completions import completions

EXAMPLES = reward_examples.__name__


def values(name: str, texts: list[str], **columns: list[object]) -> list[float | None]:
    return score([load_reward(name)], completions(texts, **columns), step=0).rewards


def test_a_function_is_found_by_name() -> None:
    reward = load_reward(f"{EXAMPLES}:length", weight=0.5, timeout_s=2.0)
    assert (reward.name, reward.weight, reward.timeout_s) == (f"{EXAMPLES}:length", 0.5, 2.0)
    assert reward.function is reward_examples.length
    assert not reward.is_async


@pytest.mark.parametrize(
    "name", ["", "length", ":length", "module:", "a:b:c", "verl:length", "verl:", "trl:a:b", "verl:openrlhf:a:b"]
)
def test_another_form_is_refused(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"reward {name!r}") as raised:
        load_reward(name)
    assert raised.value.legal == "module:function, verl:module:function, openrlhf:module:function"


@pytest.mark.parametrize(
    ("name", "told", "remedy"),
    [
        ("no_such.module:f", "no module 'no_such'", "PYTHONPATH"),
        ("rlcore.rewardz.text:f", "no module 'rlcore.rewardz'", "PYTHONPATH"),
        ("rlcore.rewards.text:matchin", "has no 'matchin'", "did you mean 'matching'?"),
        (f"{EXAMPLES}:NOT_CALLED", "is 3", ""),
        ("rlcore.data.rewards:Reward", "is <class", ""),
        ("verl:rlcore.rewards.text:zzz", "has no 'zzz'", ""),
    ],
)
def test_what_is_not_there_is_told(name: str, told: str, remedy: str) -> None:
    with pytest.raises(InvalidValueError, match=told) as raised:
        load_reward(name)
    assert remedy in raised.value.remedy


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import no_such_dependency", "of reward functions needs no_such_dependency"),
        ("1 / 0", r"raised ZeroDivisionError: division by zero, at .*broken_rewards\.py:1 in <module>"),
    ],
)
def test_a_module_that_fails_is_told_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str
) -> None:
    (tmp_path / "broken_rewards.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RewardError, match=told) as raised:
        load_reward("broken_rewards:f")
    assert raised.value.__cause__ is not None


# -------------------------------------------------------------------------------------------------------------- verl


@pytest.mark.parametrize(
    "columns",
    [
        {"answer": ["a", "b"]},
        {"ground_truth": ["a", "b"], "answer": ["no", "no"]},
        {"reward_model": [{"ground_truth": "a"}, {"ground_truth": "b"}], "ground_truth": ["no", "no"]},
        {"reward_model": [{"style": "rule"}, None], "answer": ["a", "b"]},
    ],
    ids=lambda columns: next(iter(columns)),
)
@pytest.mark.parametrize("function", ["compute_score", "compute_score_async"])
def test_verls_functions_get_the_ground_truth(function: str, columns: dict[str, list[object]]) -> None:
    assert values(f"verl:{EXAMPLES}:{function}", ["a", "a"], data_source=["here", "here"], **columns) == [1, 0]


def test_verls_functions_may_give_a_dict_and_change_what_they_are_given() -> None:
    extra: list[object] = [{"index": 3}, None]
    columns: dict[str, list[object]] = {"data_source": ["here", "here"], "answer": ["a", "b"], "extra_info": extra}
    assert values(f"verl:{EXAMPLES}:compute_score", ["dict", "b"], **columns) == [0.5, 1]
    assert values(f"verl:{EXAMPLES}:compute_score", ["a", "b"], **columns) == [1, 1]
    assert extra == [{"index": 3}, None]


def test_verls_async_functions_run_in_the_loop() -> None:
    assert load_reward(f"verl:{EXAMPLES}:compute_score_async").is_async


@pytest.mark.parametrize(
    ("function", "columns", "told"),
    [
        ("compute_score", {"answer": ["", ""]}, "without a column 'data_source'"),
        ("compute_score", {"data_source": ["here", "here"]}, "without a ground truth"),
        ("compute_score", {"data_source": ["here", "here"], "answer": ["", ""]}, r"returned {'acc': True} .*sample 1"),
        ("compute_score_async", {"data_source": ["", ""], "answer": ["", ""]}, "KeyError: 'fails', at .*sample 0"),
    ],
)
def test_faults_of_verls_functions_are_told(function: str, columns: dict[str, list[object]], told: str) -> None:
    with pytest.raises(RewardError, match=f"reward function verl:{EXAMPLES}:{function}.*{told}"):
        values(f"verl:{EXAMPLES}:{function}", ["fails", "wrong"], **columns)


# ---------------------------------------------------------------------------------------------------------- OpenRLHF


def test_openrlhfs_functions_give_tensors_lists_or_dicts() -> None:
    name = f"openrlhf:{EXAMPLES}:reward_func"
    assert values(name, ["a", "b", "dict", "list"], answer=["a", "a", "dict", ""]) == [1, 0, 1, 0.25]
    assert values(name, ["a"], label=["a"], answer=["b"]) == [1]
    assert values(name, ["None"]) == [1]


def test_faults_of_openrlhfs_functions_are_told() -> None:
    with pytest.raises(
        RewardError, match=rf"openrlhf:{EXAMPLES}:reward_func: returned tensor.* for one query .*sample 1"
    ):
        values(f"openrlhf:{EXAMPLES}:reward_func", ["a", "wrong"])
