"""The identity of a recorded run follows from its redacted configuration: of shipped scenarios nothing is redacted."""

from pathlib import Path

import pytest

from harness.bits.redaction import redact_values, secrets_kept
from harness.lab.experiment.flat_config import flattened
from harness.lab.experiment.scenario import find_scenario, spec_of_call
from harness.recording.run_spec import EntryCall
from harness.trace.format import chain_start

ROOT = Path(__file__).resolve().parents[3]
SCENARIOS = sorted((ROOT / "scenarios").glob("*.yaml"))


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 3


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_no_value_of_a_shipped_scenario_is_taken_for_a_secret(path: Path) -> None:
    scenario = find_scenario(str(path), ROOT).read()
    for size in scenario.sizes:
        payload = scenario.payload(size, {})
        told = spec_of_call(
            EntryCall(scenario.entry or "", payload, tuple(scenario.runtime_sections), None), scenario.determinism
        )
        assert {**told.identity, **told.perturbation} == {
            "(entry)": scenario.entry,
            "(level)": scenario.determinism,
            **flattened(payload),
        }
        assert redact_values(payload) == payload
        with secrets_kept():
            private = spec_of_call(
                EntryCall(scenario.entry or "", payload, tuple(scenario.runtime_sections), None), scenario.determinism
            )
        assert chain_start(private.identity) == chain_start(told.identity)
