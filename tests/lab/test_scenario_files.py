"""The scenarios of the package: each is one that its entry takes, in every size."""

from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.bits.files import MAX_SETTINGS_BYTES
from harness.lab.chaos.search import payload_factors
from harness.lab.experiment.scenario import FULL, SMOKE, ScenarioFile, all_scenarios, find_scenario
from rlcore.config import LEVELS, RUNTIME_SECTIONS, RunConfig, read_config
from rlcore.errors import InvalidValueError

FILES = all_scenarios(Path("/"))
TINY = "tiny"
"""For tests: a step takes some milliseconds."""
TIES = "ties"
"""Of one scenario: logits of bfloat16, among which some are equal."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_entry_takes_its_payload_in_every_size(file: ScenarioFile) -> None:
    scenario = file.read()
    assert scenario.entry == "rlcore.entrypoint:run"
    assert scenario.determinism in LEVELS
    assert tuple(scenario.runtime_sections) == RUNTIME_SECTIONS
    assert set(scenario.sizes) - {TIES} == {TINY, SMOKE, FULL}
    sizes = {size: read_config(scenario.payload(size, {})) for size in scenario.sizes}
    assert sizes[TINY].training.num_steps < sizes[SMOKE].training.num_steps < sizes[FULL].training.num_steps
    assert sizes[SMOKE].model == sizes[FULL].model


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_entry_takes_whatever_chaos_may_give_it(file: ScenarioFile) -> None:
    scenario = file.read()
    assert scenario.chaos.crash is not None
    factors = payload_factors(scenario.chaos, {})
    names = {factor.name for factor in factors}
    assert {"runtime.concurrency", "output.evaluate_every", "output.checkpoint_every"} <= names
    for factor in factors:
        values = (factor.values[0], factor.values[-1]) if isinstance(factor.values, range) else factor.values
        for value in values:
            read_config(scenario.payload(SMOKE, {**scenario.chaos.crash, factor.name: value}))


def test_all_are_there_and_keys_that_are_none_of_their_entrys_are_found() -> None:
    scenarios = {file.name: file.read() for file in FILES}
    shipped = {"grpo_reverse_text", "ppo_arithmetic", "grpo_sorting", "grpo_recommendation", "grpo_reward_model"}
    shipped.add("grpo_products")
    assert set(scenarios) == shipped
    names = {name: read_config(scenario.config) for name, scenario in scenarios.items()}
    told = {name: f"{config.algorithm.name}_{_learned(config)}" for name, config in names.items()}
    assert told == {name: name for name in scenarios}
    payload = scenarios["grpo_sorting"].payload(SMOKE, {"training.num_stepz": 3})
    with pytest.raises(InvalidValueError, match=r"training\.num_stepz") as refused:
        read_config(payload)
    assert refused.value.legal.startswith("num_steps?")


def _learned(config: RunConfig) -> str:
    return "reward_model" if config.task.reward_model else config.task.name


def test_a_file_that_a_parser_would_read_for_minutes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long.yaml").write_text("a:\n" + "- a\n" * (MAX_SETTINGS_BYTES // 4))
    with pytest.raises(UsageError, match="it has more than 1,048,576 bytes"):
        find_scenario("./long.yaml", tmp_path).read()
