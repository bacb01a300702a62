"""What the shipped scenarios say must not matter does not: twenty perturbations of each, at their smallest size."""

import json
from pathlib import Path

import pytest

from harness.exit_codes import ExitCode
from harness.lab.scenario_places import all_scenarios
from tests.lab.chaos.typed import chaos

pytest.importorskip("tensordict")
SHIPPED = tuple(each.name for each in all_scenarios(Path("nowhere")))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SHIPPED)
def test_twenty_perturbations_move_no_bit(tmp_path: Path, scenario: str) -> None:
    done = chaos(tmp_path, scenario, "--size", "tiny", "--count", "20", "--json")
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert (told["finding"], told["num_probes"]) == (None, 20)
    assert told["num_runs"] > 22, "some of them were killed and gone on from"
