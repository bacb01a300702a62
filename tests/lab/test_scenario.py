"""Scenarios: the envelope's keys, sizes, where files are looked for, and what is said where there is none."""

from pathlib import Path

import pytest

from harness.bits.errors import UsageError
from harness.lab.experiment.scenario import A_COMMAND, all_scenarios, find_scenario, parse_scenario
from tests.lab.scenario_texts import TINY, write_tiny

PLAIN = ("about: a sum", "entry: a:b", "determinism: off", "runtime_sections: [runtime, output]")


def test_a_size_is_laid_over_the_payload_and_what_is_set_over_both() -> None:
    tiny = parse_scenario(TINY, "tiny.yaml")
    assert (tiny.payload("full", {})["num_steps"], tiny.payload("smoke", {})["num_steps"]) == (5, 3)
    assert tiny.payload("smoke", {"num_steps": 9, "runtime.x": 1}) == {
        **tiny.config,
        "num_steps": 9,
        "runtime": {"num_parts": 4, "x": 1},
    }
    assert tiny.config["num_steps"] == 5, "it stays as it was read"


def test_a_size_that_is_not_there_is_refused_if_it_was_asked_for() -> None:
    tiny = parse_scenario(TINY, "tiny.yaml")
    assert (tiny.chosen_size(None, "smoke"), tiny.chosen_size("full", "smoke")) == ("smoke", "full")
    with pytest.raises(UsageError, match="no size 'huge'") as refused:
        tiny.chosen_size("huge", "smoke")
    assert refused.value.legal == "smoke, full"
    plain = parse_scenario("about: x\nentry: a:b\ndeterminism: off\n", "x")
    assert plain.chosen_size(None, "smoke") == "smoke"
    assert plain.payload("smoke", {}) == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("about:", "abuot:", "unknown key 'abuot', did you mean 'about'?"),
        ("entry: tests.lab.tiny_entry:run\n", "", "either entry or command is needed"),
        ("entry: tests.lab.tiny_entry:run\n", "command: python {nope}\n", "command: {nope} is no key of config"),
        ("entry: tests.lab.tiny_entry:run\n", "command: python 'a\n", "command: No closing quotation"),
        ("determinism: ", "# ", "determinism is missing"),
        ("tests.lab.tiny_entry:run", "tests.lab.tin\xe9:run", "entry is 'tests.lab.tin\xe9:run'"),
        (
            "runtime_sections:",
            "resume: {run: output.resume, step: seed}\nruntime_sections:",
            "resume: seed is not in a section of runtime settings",
        ),
        ("seed: 1", "a.b: 1", "config: the key 'a.b' is empty or contains a dot"),
    ],
)
def test_what_is_wrong_in_an_envelope_is_named(old: str, new: str, said: str) -> None:
    assert old in TINY
    with pytest.raises(UsageError) as refused:
        parse_scenario(TINY.replace(old, new), "tiny.yaml")
    assert f"tiny.yaml: {said}" in refused.value.what or said in refused.value.what
    assert refused.value.what.startswith("tiny.yaml: ")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("chaos: {factors: {runtime.num_parts: 7}}", "chaos.factors.runtime.num_parts is 7: Input should be"),
        ("chaos: {factors: {runtime.num_parts: {min: 5, max: 5}}}", "min 5 is not below max 5"),
        ("chaos: {factors: {num_steps: [1, 2]}}", "chaos.factors.num_steps is 'num_steps': String should match"),
        ("chaos: {factor: {}}", "unknown key 'chaos.factor', did you mean 'chaos.factors'?"),
        ("resume: {run: output.resume}", "resume.step is missing"),
        ("gpus: -1", "gpus is -1: Input should be greater than or equal to 0"),
        ("determinism: full", "determinism is 'full': Input should be 'off', 'deterministic' or 'invariant'"),
        ("runtime_sections: [a.b]", "runtime_sections.0 is 'a.b'"),
        ("config: 3", "config is 3: Input should be a valid dictionary"),
        ("sizes: {smoke: 3}", "sizes.smoke is 3"),
        ("entry: 7", "entry is 7"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(lines: str, said: str) -> None:
    key = lines.partition(":")[0]
    others = [line for line in PLAIN if not line.startswith(f"{key}:")]
    with pytest.raises(UsageError) as refused:
        parse_scenario("\n".join([*others, lines]), "a.yaml")
    assert refused.value.what.startswith("a.yaml: ")
    assert said in refused.value.what
    assert refused.value.legal.startswith("the keys about, entry")


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        parse_scenario("about: x\nentry: 7\nfrobnicate: 1", "x")
    assert all(word in refused.value.what for word in ("entry is 7", "'frobnicate'"))


# ----------------------------------------------------------------------------------------------------------- places


def test_names_are_those_of_the_project_then_of_the_package(tmp_path: Path) -> None:
    shipped = [file.name for file in all_scenarios(tmp_path)]
    assert {"grpo_reverse_text", "ppo_arithmetic", "grpo_sorting"} <= set(shipped)
    write_tiny(tmp_path)
    write_tiny(tmp_path, "grpo_sorting")
    (tmp_path / "scenarios" / "notes.txt").write_text("no scenario", encoding="utf-8")
    assert [file.name for file in all_scenarios(tmp_path)] == sorted([*shipped, "tiny"])
    assert find_scenario("grpo_sorting", tmp_path).read().about == "A sum in parts", "the project's own comes first"
    assert find_scenario("ppo_arithmetic", tmp_path).read().entry == "rlcore.entrypoint:run"


def test_a_file_is_named_by_its_path(tmp_path: Path) -> None:
    path = write_tiny(tmp_path)
    for name in ("scenarios/tiny.yaml", str(path)):
        assert find_scenario(name, tmp_path).read().about == "A sum in parts"
    with pytest.raises(UsageError, match=r"no file other\.yaml"):
        find_scenario("other.yaml", tmp_path)


def test_the_nearest_names_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no scenario 'grpo_revers_text'") as refused:
        find_scenario("grpo_revers_text", tmp_path)
    assert refused.value.remedy.startswith("did you mean grpo_reverse_text")
    with pytest.raises(UsageError) as refused:
        find_scenario("zzzzz", tmp_path)
    assert "grpo_reverse_text" in refused.value.legal
    for name in ("zzzzz", "runs/zzzzz"):
        with pytest.raises(UsageError) as refused:
            find_scenario(name, tmp_path, A_COMMAND)
        assert refused.value.legal.endswith("; a command after --")
        with pytest.raises(UsageError) as refused:
            find_scenario(name, tmp_path)
        assert A_COMMAND not in refused.value.legal, "who takes none does not offer it"


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    path = write_tiny(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"tiny\.yaml is not a text file"):
        find_scenario("tiny", tmp_path).read()
    path.write_text("about: [", encoding="utf-8")
    with pytest.raises(UsageError, match=r"tiny\.yaml, line 1, column 9: "):
        find_scenario("tiny", tmp_path).read()


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(UsageError, match="is not a mapping"):
        parse_scenario("- a", "x")
