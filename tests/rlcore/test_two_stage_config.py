"""Settings of two stages: taken as they are meant, or refused with the value, what is legal and a remedy."""

from typing import Any

import pytest

from rlcore.config import read_config
from rlcore.errors import InvalidValueError
from rlcore.log import announcement

STAGES = {"num_beams": 4, "max_item_tokens": 3, "forced_text": ":"}


def payload(**sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration of two stages, with sections merged into it."""
    found: dict[str, dict[str, Any]] = {
        "task": {"name": "recommendation"},
        "algorithm": {"name": "grpo"},
        "sampling": {"stop_strings": [";"], "two_stage": STAGES},
    }
    for name, section in sections.items():
        found[name] = {**found.get(name, {}), **section}
    return found


def test_settings_of_two_stages_are_of_a_runs_identity() -> None:
    config = read_config(payload())
    assert config.sampling.two_stage is not None and config.sampling.two_stage.num_beams == 4
    assert config.identity()["sampling"]["two_stage"] == STAGES
    assert read_config(payload(sampling={"two_stage": None})).sampling.two_stage is None


@pytest.mark.parametrize(
    ("sections", "what", "legal"),
    [
        ({"sampling": {"stop_strings": []}}, "sampling.two_stage without sampling.stop_strings", "one text or more"),
        ({"algorithm": {"name": "ppo"}}, "algorithm.name is ppo", "grpo"),
        ({"algorithm": {"name": "grpo", "advantage": "remax"}}, "algorithm.advantage is remax", "dr_grpo"),
        ({"sampling": {"two_stage": {**STAGES, "num_beams": 1}}}, "sampling.two_stage.num_beams is 1", "or equal to 2"),
        ({"sampling": {"two_stage": {**STAGES, "max_item_tokens": 0}}}, "max_item_tokens is 0", "or equal to 1"),
        ({"sampling": {"two_stage": {"num_beams": 2}}}, "max_item_tokens is missing", ""),
        ({"sampling": {"two_stage": {**STAGES, "beams": 2}}}, "unknown key sampling.two_stage.beams", "num_beams?"),
        (
            {"training": {"prompts_per_step": 2, "group_size": 2, "num_minibatches": 5}},
            "num_minibatches is 5",
            "1 to 4",
        ),
    ],
)
def test_what_has_no_meaning_for_two_stages_is_refused(
    sections: dict[str, dict[str, Any]], what: str, legal: str
) -> None:
    with pytest.raises(InvalidValueError) as refused:
        read_config(payload(**sections))
    assert what in refused.value.what
    assert legal in refused.value.legal


def test_the_number_of_samples_is_not_known_before_sampling() -> None:
    """One reasoning a prompt has items to compare; no size of microbatches divides a number that is not fixed."""
    config = read_config(payload(training={"group_size": 1, "microbatch_size": 7, "num_minibatches": 3}))
    assert (config.training.group_size, config.training.microbatch_size) == (1, 7)
    for wrong in ({"group_size": 1}, {"microbatch_size": 7}):
        with pytest.raises(InvalidValueError):
            read_config(payload(sampling={"two_stage": None}, training=wrong))


def test_a_run_announces_reasonings_and_items() -> None:
    said = announcement(read_config(payload()), level="invariant", num_parameters=9)
    assert "8 prompts of 8 reasonings each, up to 4 items per reasoning" in said
    plain = announcement(read_config(payload(sampling={"two_stage": None})), level="invariant", num_parameters=9)
    assert "8 prompts of 8 completions each, learning rate" in plain
    assert "prompts:" not in plain


def test_a_run_announces_rows_that_it_does_not_use() -> None:
    of = read_config({"task": {"name": "file", "path": "mine.jsonl"}, "algorithm": {"name": "grpo"}})
    said = announcement(of, level="off", num_parameters=9, num_unused=300)
    assert "prompts:    300 rows of mine.jsonl are neither trained on nor held out (task.num_prompts," in said
