"""Recordings whose entry was renamed since are equal to those of now; any other name still tells runs apart."""

from pathlib import Path

import pytest

from harness.trace.diff import diff
from harness.trace.manifest import Manifest, manifest_text, parse_manifest
from harness.trace.reader import read_trace
from harness.trace.renames import (
    CONFIG_KEYS,
    ENGINE,
    ENTRIES,
    ENTRY,
    LEVEL,
    current_call,
    current_identity,
    current_key,
)
from harness.trace.verdict import Kind
from rlcore.config import FOREIGN
from tests.support.traces import manifest_of, steps_of, write


def kind_of(tmp_path: Path, a: str, b: str) -> Kind:
    for name, entry in (("a", a), ("b", b)):
        write(tmp_path / name, steps_of(2), manifest=manifest_of(identity={ENTRY: entry}))
    return diff(read_trace(tmp_path / "a"), read_trace(tmp_path / "b")).kind


@pytest.mark.parametrize(("before", "now"), ENTRIES.items())
def test_a_renamed_entry_is_the_same_run(tmp_path: Path, before: str, now: str) -> None:
    assert kind_of(tmp_path, before, now) is Kind.EQUAL


BEFORE = {"training.lane_width": "4", "training.num_steps": "3", LEVEL: "rerun"}
NOW = {"training.microbatch_size": "4", "training.num_steps": "3", LEVEL: "deterministic"}


def test_keys_of_the_engine_and_levels_are_read_by_their_present_names() -> None:
    assert current_identity({ENTRY: ENGINE, **BEFORE}) == {ENTRY: ENGINE, **NOW}
    of_another = {ENTRY: "mine:run", "training.lane_width": "4"}
    assert current_identity(of_another) == of_another
    level_only = manifest_text(Manifest(level="deterministic")).replace('"deterministic"', '"rerun"')
    assert parse_manifest(level_only) == Manifest(level="deterministic")


def test_the_engine_refuses_each_old_key_with_the_name_that_recordings_are_read_by() -> None:
    """Two tables, since neither package imports the other."""
    assert set(CONFIG_KEYS.values()) <= FOREIGN.keys()
    assert {current_key(new) for new in CONFIG_KEYS.values()} == set(CONFIG_KEYS.values())


def test_a_recorded_call_is_read_by_its_present_names() -> None:
    config = {"training": {"lane_width": 4}, "perturbation": {"microbatch_tokens": 9, "world_size": 2}}
    call = {"entry": "rlcore.training.run:run", "config": config, "free": ["perturbation", "output"], "resume": None}
    assert current_call(call) == {
        "entry": ENGINE,
        "config": {"training": {"microbatch_size": 4}, "runtime": {"token_budget": 9, "world_size": 2}},
        "runtime_sections": ["runtime", "output"],
        "resume": None,
    }
    of_another = {"entry": "mine:run", "config": config, "free": ["perturbation"], "resume": None}
    assert current_call(of_another)["config"] == config


def test_runtime_settings_of_earlier_recordings_are_compared_by_their_present_names(tmp_path: Path) -> None:
    recorded = {"perturbation.world_size": "2"}, {"runtime.world_size": "2"}
    for name, settings in zip("ab", recorded, strict=True):
        manifest = manifest_of(identity={ENTRY: ENGINE}, perturbation=settings)
        write(tmp_path / name, steps_of(2), manifest=manifest)
    verdict = diff(read_trace(tmp_path / "a"), read_trace(tmp_path / "b"))
    assert (verdict.kind, dict(verdict.fingerprints)) == (Kind.EQUAL, {})
