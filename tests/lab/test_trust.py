"""What a recorded call names, and no scenario here does."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.lab.experiment.scenario import all_scenarios, parse_scenario
from harness.lab.experiment.trust import MAX_SHOWN, check_run, unnamed_in
from harness.process.invocation import Invocation
from harness.recording.run_spec import EntryCall
from tests.support.recorded_runs import recorded
from tests.support.traces import SEEDED

SCENARIO = parse_scenario(
    """\
about: texts in every place
entry: mine.train:run
determinism: deterministic
sizes: {smoke: {task.path: small.jsonl, seed: 7}, full: {}}
runtime_sections: [output]
resume: {run: output.resume, step: output.resume_step}
config:
  seed: 1
  task: {path: large.jsonl, rewards: ['mine:reward', {'mine:other': 0.5, kind: mean}], num_rows: [1, 2], none: []}
  judge: {api_key: abc, url: 'https://a:b@c/d'}
  output: {note: x, checkpoint_every: 2}
""",
    "a.yaml",
)
RESUME = {"run": "output.resume", "step": "output.resume_step"}
CALL = EntryCall(SCENARIO.entry or "", SCENARIO.payload("full", {}), tuple(SCENARIO.runtime_sections), RESUME)


def names(call: EntryCall) -> list[str]:
    return [each.key for each in unnamed_in(call, [SCENARIO])]


def changed(**values: Any) -> EntryCall:
    """The call with other values at these keys; __ stands for a dot."""
    return replace(CALL, config=SCENARIO.payload("", {key.replace("__", "."): value for key, value in values.items()}))


@pytest.mark.parametrize("size", ["", "smoke", "full"])
@pytest.mark.parametrize("scenario", [SCENARIO, *(each.read() for each in all_scenarios(Path("/")))])
def test_a_scenario_names_all_that_it_calls_in_each_size(scenario: Any, size: str) -> None:
    resume = None if scenario.resume is None else scenario.resume.model_dump()
    call = EntryCall(scenario.entry, scenario.payload(size, {}), tuple(scenario.runtime_sections), resume)
    assert unnamed_in(call, [SCENARIO, scenario]) == []


def test_what_has_no_colon_is_free() -> None:
    assert names(changed(seed=2**40, task__num_rows=[7.5, True, None], task__none=[{}], new={"a": "b"})) == []
    assert names(changed(task__path="/data/other.jsonl", judge__model="m")) == []
    assert names(replace(CALL, config={}, resume=None)) == []


def test_what_a_scenario_names_may_stand_anywhere_and_another_scenario_may_name_it() -> None:
    assert names(changed(task__rewards=["mine:other"], task__path="mine:reward")) == []
    other = SCENARIO.model_copy(update={"entry": "other:run", "config": {"reward": "other:reward"}})
    call = changed(task__rewards=["other:reward"])
    assert names(call) == ["task.rewards.[]"]
    assert unnamed_in(call, [SCENARIO, other]) == []


def test_a_call_that_was_recorded_without_its_secrets_is_that_of_its_scenario() -> None:
    assert names(changed(judge__api_key="<redacted>", judge__url="https://<redacted>@c/d")) == []
    assert names(changed(judge__url="https://<redacted>@evil/d")) == ["judge.url"]


@pytest.mark.parametrize(
    ("call", "listed"),
    [
        (replace(CALL, entry="os:system", config={"a": "b", "c": "mine:reward", "d": "e:f"}), ["entry", "d"]),
        (replace(CALL, entry="mine:reward"), ["entry"]),
        (changed(task__path="subprocess:getoutput"), ["task.path"]),
        (changed(task__rewards=["subprocess:getoutput"]), ["task.rewards.[]"]),
        (changed(task__rewards=["verl:a:b", [["c:d"]]]), ["task.rewards.[]", "task.rewards.[].[].[]"]),
        (changed(task__rewards=[{"a:b": 0.5}]), ["task.rewards.[].a:b"]),
        (changed(task__rewards=[{"a:b": {}}]), ["task.rewards.[].a:b"]),
        (changed(task__rewards=[{"kind": " ä : b\n"}]), ["task.rewards.[].kind"]),
        (changed(deployment__address="host.example:6379"), ["deployment.address"]),
        (replace(CALL, config={"a:b": "<redacted>"}), ["a:b"]),
    ],
)
def test_what_only_a_call_names_is_listed(call: EntryCall, listed: list[str]) -> None:
    assert names(call) == listed


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(":ab ", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(":ab ", max_size=6), inner, max_size=3),
    max_leaves=6,
)


def texts_of(value: Any) -> set[str]:
    """Every text and key of plain values, by a way of its own: as JSON has them."""
    found: set[str] = set()

    def take(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.update(key for key, _ in pairs)
        return dict(pairs)

    json.loads(json.dumps(value), object_pairs_hook=take)
    rest = [value]
    while rest:
        match rest.pop():
            case str() as text:
                found.add(text)
            case list() as several:
                rest += several
            case dict() as several:
                rest += several.values()
    return found


@SEEDED
@given(
    st.sampled_from(["seed", "task", "task.path", "task.rewards", "judge.url", "output.new", "new.er", "new"]), plain
)
def test_whatever_text_with_a_colon_is_put_anywhere_is_listed(key: str, value: Any) -> None:
    call = replace(CALL, config=SCENARIO.payload("", {key: value}))
    listed = " ".join(f"{json.dumps(each.key)} {json.dumps(each.value)}" for each in unnamed_in(call, [SCENARIO]))
    assert [text for text in texts_of(value) if ":" in text and json.dumps(text)[1:-1] not in listed] == []


# ------------------------------------------------------------------------------------------------ what a person sees


def test_a_list_is_bounded_and_holds_no_control_characters(tmp_path: Path) -> None:
    config = {"note": "x:" * 10_000, **{f"key\n{n:02}": "\x1b[2J\u202e:" for n in range(99)}}
    run = recorded(tmp_path / "a\x1b", replace(CALL, entry="a:b", config=config))
    with pytest.raises(UsageError) as refused:
        check_run(run, Invocation(tmp_path, {}), is_trusted=False)
    lines = refused.value.what.splitlines()
    assert lines[0].endswith("a\\x1b would use 101 values that no scenario here names:")
    assert lines[1] == '    entry = "a:b"'
    assert lines[-1] == "    and 61 more: read its call.json"
    assert (len(lines), max(map(len, lines[1:])) < 400) == (MAX_SHOWN + 2, True)
    assert "\x1b" not in refused.value.what
    assert "\u202e" not in refused.value.what


def test_files_links_and_modules_that_a_foreign_run_brings_are_listed(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", replace(CALL, entry="a:b", config={}), checkpoints=(2,))
    checkpoint = run.directory / "checkpoints" / "step-000002"
    (checkpoint / "weights.safetensors").touch()
    (checkpoint / "optimizer.pt").touch()
    (checkpoint / "values.json").symlink_to("/etc/hostname")
    invocation = Invocation(run.directory, {})
    with pytest.raises(UsageError) as refused:
        check_run(run, invocation, is_trusted=False)
    assert set(refused.value.what.splitlines()[1:]) == {
        '    entry = "a:b"',
        f'    import path = "{run.directory}"',
        '    file = "checkpoints/step-000002/optimizer.pt"',
        '    file = "checkpoints/step-000002/values.json"',
    }
