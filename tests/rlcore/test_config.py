"""A configuration is taken as it is meant or refused by its dotted key, in the words of who wrote it."""

from collections.abc import Iterator
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from rlcore.config import FOREIGN, GrpoSection, PpoSection, RunConfig, RuntimeSection, TrainingSection, read_config
from rlcore.errors import InvalidValueError

LEAST: dict[str, Any] = {"task": {"name": "sorting"}, "algorithm": {"name": "grpo"}}


def with_value(dotted: str, value: Any, algorithm: str = "grpo") -> dict[str, Any]:
    """The least that a configuration has to hold, and a value at a dotted key."""
    payload: dict[str, Any] = {"task": dict(LEAST["task"]), "algorithm": {"name": algorithm}}
    *sections, key = dotted.split(".")
    place = payload
    for section in sections:
        place = place.setdefault(section, {})
    place[key] = value
    return payload


def keys(model: type[BaseModel] = RunConfig, above: str = "") -> Iterator[tuple[str, str]]:
    """Every dotted key, and the algorithm with which it goes."""
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        yield f"{above}{name}", "ppo" if model is PpoSection else "grpo"
        for section in sections:
            yield from keys(section, f"{above}{name}.")


KEYS = sorted(set(keys()))


@pytest.mark.full
@pytest.mark.parametrize(("dotted", "algorithm"), KEYS)
@given(value=st.sampled_from([float("nan"), {"no": 1}, [[]], object()]))
def test_what_no_key_takes_is_refused_by_its_key_without_pydantics_words(
    dotted: str, algorithm: str, value: Any
) -> None:
    payload = with_value(dotted, value, algorithm)
    with pytest.raises(InvalidValueError) as refused:
        read_config(payload)
    assert dotted in refused.value.what
    assert refused.value.legal
    assert "Input" not in str(refused.value)
    assert "Section" not in str(refused.value)


@pytest.mark.parametrize(
    ("dotted", "value", "what", "legal"),
    [
        ("optimizer.learning_rate", True, "optimizer.learning_rate is True", "a valid number"),
        ("optimizer.learning_rate", "1e-3", "optimizer.learning_rate is '1e-3'", "a valid number"),
        ("seed", True, "seed is True", "a valid integer"),
        ("seed", 1.0, "seed is 1.0", "a valid integer"),
        ("task.shuffles_rewards", 1, "task.shuffles_rewards is 1", "a valid boolean"),
        ("task.rewards", "a:b", "task.rewards is 'a:b'", "a list"),
        ("task.rewards", ["a:b", 1], "task.rewards.1 is 1", "a valid string"),
        ("training.num_steps", 0, "training.num_steps is 0", "greater than or equal to 1"),
        ("model.family", "gpt", "model.family is 'gpt'", "'llama', 'qwen2' or 'qwen3'"),
        ("algorithm.name", "pgo", "algorithm.name is 'pgo'", "'grpo', 'ppo'"),
        ("algorithm", 3, "algorithm is 3", "keys with values"),
        ("training", 3, "training is 3", "keys with values"),
        ("runtime.sampling_threads", 10**6, "runtime.sampling_threads is 1000000", "less than or equal to 1024"),
        ("deployment.num_ranks", 10**12, "deployment.num_ranks is 1000000000000", "less than or equal to 65536"),
    ],
)
def test_a_value_of_another_kind_is_no_value(dotted: str, value: Any, what: str, legal: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read_config(with_value(dotted, value))
    assert (refused.value.what, refused.value.legal) == (what, legal)


def test_a_list_and_a_whole_number_stand_for_what_is_meant() -> None:
    found = read_config(with_value("sampling.stop_strings", ["."]) | {"optimizer": {"learning_rate": 1}})
    assert found.sampling.stop_strings == (".",)
    assert found.optimizer.learning_rate == 1.0


@pytest.mark.parametrize(
    ("dotted", "nearest", "section"),
    [
        ("traning", "training", RunConfig),
        ("algorithm.clip_eps", "clip_eps_low", GrpoSection),
        ("perturbation", "runtime", RunConfig),
        ("runtime.microbatch_tokens", "runtime.token_budget", RuntimeSection),
        ("training.lane_width", "training.microbatch_size", TrainingSection),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_and_all(dotted: str, nearest: str, section: type[BaseModel]) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read_config(with_value(dotted, 1))
    assert refused.value.what == f"unknown key {dotted}"
    assert refused.value.legal == f"{nearest}? All: {', '.join(section.model_fields)}"


def test_several_faults_are_told_at_once() -> None:
    with pytest.raises(InvalidValueError) as refused:
        read_config({"seed": -1, "algorithm": {"name": "ppo", "gamma": 2}})
    assert refused.value.what == "seed is -1; task is missing; algorithm.gamma is 2"
    assert refused.value.remedy == "set task"


@pytest.mark.parametrize(
    ("training", "what", "legal"),
    [
        (
            {"microbatch_size": 3},
            "training.microbatch_size is 3, which does not divide the 64 samples",
            "1, 2, 4, 8, 16, 32, 64",
        ),
        (
            {"num_minibatches": 3, "microbatch_size": 8},
            "training.num_minibatches is 3, which does not divide the 8 fixed microbatches",
            "1, 2, 4, 8",
        ),
        ({"num_minibatches": 3}, "training.num_minibatches is 3, which does not divide the 64 samples", "1, 2, 4, 8"),
        ({"group_size": 1}, "training.group_size is 1, and advantage grpo compares", "2 or more"),
    ],
)
def test_what_does_not_fit_together_is_told_with_what_would(training: dict[str, int], what: str, legal: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read_config({**LEAST, "training": training})
    assert refused.value.what.startswith(what)
    assert refused.value.legal.startswith(legal)


@pytest.mark.parametrize(
    ("training", "max_tokens", "size"),
    [
        ({}, 32, 64),  # the whole step of 8 prompts x 8 completions
        ({}, 128, 16),
        ({}, 4096, 1),
        ({"num_minibatches": 4}, 32, 16),
        ({"prompts_per_step": 2, "group_size": 3}, 32, 6),
        ({"microbatch_size": 4}, 32, 4),
    ],
)
def test_a_microbatch_that_is_left_out_is_a_minibatch_of_2048_tokens_at_most(
    training: dict[str, int], max_tokens: int, size: int
) -> None:
    config = read_config({**LEAST, "training": training, "sampling": {"max_tokens": max_tokens}})
    assert config.microbatch_size == size


@pytest.mark.parametrize("algorithm", [{"name": "grpo", "advantage": "remax"}, {"name": "ppo"}])
def test_one_completion_a_prompt_is_enough_where_nothing_is_compared(algorithm: dict[str, str]) -> None:
    found = read_config({**LEAST, "algorithm": algorithm, "training": {"group_size": 1}})
    assert found.training.group_size == 1


WITHOUT_EFFECT: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"model": {"width": 32}}, {"model": {"path": "mine"}}),
    ({"model": {"family": "llama", "is_tied": False}}, {"model": {"path": "mine"}}),
    ({"task": {"path": "mine.jsonl"}}, {}),
    ({"task": {"reward_timeout_s": 3.0}}, {}),
    ({"warm_start": {"check_every": 3}}, {}),
    ({"evaluation": {"num_samples": 4}}, {"evaluation": {"temperature": 0.0}}),
    ({"evaluation": {"pass_reward": 0.5}}, {}),
    ({"algorithm": {"clip_eps_low": 0.1}}, {"algorithm": {"loss": "ipo"}}),
    ({"algorithm": {"clip_eps_high": 0.1}}, {"algorithm": {"loss": "masked_is"}}),
    ({"algorithm": {"dual_clip": 3.0}}, {"algorithm": {"loss": "gspo"}}),
    ({"algorithm": {"mask_low": 0.1}}, {}),
    ({"algorithm": {"mask_high": 0.1}}, {"algorithm": {"loss": "masked_is"}}),
    ({"algorithm": {"proximal_coef": 0.1}}, {"algorithm": {"loss": "gspo"}}),
    ({"algorithm": {"kl_estimator": "k3"}}, {}),
    ({"algorithm": {"kl_target": 0.1}}, {"algorithm": {"name": "ppo"}}),
    ({"algorithm": {"kl_horizon": 10}}, {"algorithm": {"name": "ppo", "kl_coef": 0.1}}),
    ({"correction": {"low": 0.4}}, {}),
    ({"correction": {"high": 4.0}}, {"correction": {"max_mean_k3": 0.1}}),
    ({"correction": {"outside": "icepop"}}, {}),
    ({"correction": {"low": 0.4}}, {"correction": {"weights": "token"}}),
    ({"optimizer": {"final_ratio": 0.1}}, {}),
    ({"deployment": {"offload_directory": "/"}}, {}),
    ({"output": {"resume_step": 3}}, {}),
)


@pytest.mark.parametrize(("setting", "others"), WITHOUT_EFFECT)
def test_a_setting_without_effect_is_refused_and_null_takes_it_back(
    setting: dict[str, Any], others: dict[str, Any]
) -> None:
    ((section, values),) = setting.items()
    payload = {name: {**LEAST.get(name, {}), **others.get(name, {})} for name in {*LEAST, *others, section}}
    read_config(payload)
    with pytest.raises(InvalidValueError) as refused:
        read_config({**payload, section: {**payload[section], **values}})
    said = ", ".join(f"{section}.{key} is {value!r}" for key, value in values.items())
    assert refused.value.what == f"{said}, which has no effect here"
    assert refused.value.legal.startswith("with")
    assert read_config({**payload, section: {**payload[section], **dict.fromkeys(values)}}) == read_config(payload)


@pytest.mark.parametrize(
    ("algorithm", "aggregation"),
    [
        ({}, "token-mean"),
        ({"loss": "gspo"}, "seq-mean-token-mean"),
        ({"loss": "gspo", "advantage": "dr_grpo"}, "seq-mean-token-mean"),
        ({"advantage": "dr_grpo"}, "seq-mean-token-sum-norm"),
        ({"advantage": "dr_grpo", "loss": "cispo"}, "seq-mean-token-sum-norm"),
        ({"advantage": "dr_grpo", "loss": "masked_is"}, "token-mean"),
        ({"advantage": "dr_grpo", "aggregation": "token-mean"}, "token-mean"),
        ({"name": "ppo"}, "token-mean"),
        ({"name": "ppo", "aggregation": "token-sum"}, "token-sum"),
    ],
)
def test_an_aggregation_that_is_left_out_is_that_of_the_loss_and_the_advantage(
    algorithm: dict[str, Any], aggregation: str
) -> None:
    assert read_config({**LEAST, "algorithm": {"name": "grpo", **algorithm}}).aggregation == aggregation


def test_items_and_their_reasonings_have_no_common_horizon() -> None:
    stages = {"stop_strings": [";"], "two_stage": {"num_beams": 2, "max_item_tokens": 3}}
    found = read_config({**LEAST, "algorithm": {"name": "grpo", "advantage": "dr_grpo"}, "sampling": stages})
    assert found.aggregation == "token-mean"


@pytest.mark.parametrize(
    ("foreign", "ours"),
    [
        ("algorithm.beta", "algorithm.kl_coef"),
        ("algorithm.epsilon_high", "algorithm.clip_eps_high"),
        ("training.num_generations", "training.group_size"),
        ("training.max_completion_length", "sampling.max_tokens"),
        ("optimizer.lr", "optimizer.learning_rate"),
        ("algorithm.adv_estimator", "algorithm.advantage"),
    ],
)
def test_a_name_of_another_library_is_refused_with_ours(foreign: str, ours: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read_config(with_value(foreign, 1))
    assert refused.value.what == f"unknown key {foreign}"
    assert refused.value.legal.startswith(f"{ours}? All: ")


def test_every_name_of_ours_beside_a_foreign_one_is_a_key() -> None:
    assert set(FOREIGN) <= {dotted for dotted, _ in KEYS}
