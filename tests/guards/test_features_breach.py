"""A row of the features is red when its feature does nothing; an option without a row, or a row without one, is too."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.guards.features import FEATURES
from tests.guards.features.completeness import unlisted
from tests.guards.features.feature import Feature, Runs

pytestmark = pytest.mark.timeout(900)
NUM_DRAWN = 10
_CHEAP = ("keys-plan", "plan-workers", "version", "help", "scenarios", "scenarios-check")
_CHEAP_RUNS = (*_CHEAP, "schema-out", "plan-secret", "merge-secret", "history-secret", "gate-secret")
"""Runs of few processes, none of which imports torch."""
DRAWN = random.Random(20261128).sample([each for each in FEATURES if each.run.name in _CHEAP_RUNS], NUM_DRAWN)


@pytest.mark.full
@pytest.mark.parametrize("feature", DRAWN, ids=lambda feature: feature.name)
def test_a_row_is_red_when_its_feature_does_nothing(feature: Feature, tmp_path: Path) -> None:
    bare = replace(feature.stripped(), name="without")
    assert bare != replace(feature.run, name="without")
    assert feature.problem(Runs(tmp_path).seen(bare))


def test_every_row_has_a_name_of_its_own_and_a_run_without_its_feature() -> None:
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
    assert [feature.name for feature in FEATURES if feature.stripped() == feature.run] == []


@pytest.mark.full
def test_an_option_without_a_row_and_a_row_without_an_option_are_red(tmp_path: Path) -> None:
    stale = [replace(FEATURES[1], name=name) for name in ("run --no-such", "command nothing", "scenario nothing")]
    without = [each for each in FEATURES if each.name != "run --junit"]
    red = {row.name: row.problem for row in unlisted([*without, *stale], tmp_path) if row.problem}
    assert red["run --junit"] == "no row shows it"
    assert all("does not exist" in red[each.name] for each in stale)
