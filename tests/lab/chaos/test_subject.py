"""What a search takes from a scenario: the factors of its size, what they leave out, and what a crash needs."""

from pathlib import Path

from harness.lab.chaos.search import CRASH, ChaosOptions, Choice, Subject, Values, make_subject
from harness.lab.experiments.command_spec import ScenarioOptions
from harness.process.invocation import Invocation
from tests.lab.chaos.faulty_scenarios import write_scenario
from tests.support.manual import ROOT


def subject(cwd: Path, name: str, size: str | None = None) -> Subject:
    return make_subject(Invocation(cwd, {}), ChaosOptions(name, scenario_options=ScenarioOptions(size=size)))


def budgets(size: str) -> Values:
    return {each.name: each.values for each in subject(ROOT, "grpo_reverse_text", size).factors}["runtime.token_budget"]


def test_a_size_has_budgets_that_divide_its_passes() -> None:
    assert budgets("tiny") == Choice((128, 64))
    assert budgets("smoke") == Choice((2048, 1024, 512))


def test_a_crash_has_its_checkpoints_whatever_else_is_perturbed(tmp_path: Path) -> None:
    found = subject(tmp_path, write_scenario(tmp_path, "sound"))
    assert found.unvaried == ("output.checkpoint_every",)
    for perturbation, expected in (
        ({"output.checkpoint_every": 3}, 3),
        ({"output.checkpoint_every": 3, CRASH: "1.end"}, 1),
    ):
        call = found.run_spec(perturbation).call
        assert call is not None and call.config["output"]["checkpoint_every"] == expected
