"""What `rlharness chaos` says: the sentence, the evidence beside it, the command that shows it again."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.chaos.search import Chaos, ChaosPlan, Factor, Finding, NotApplied, Outcome, Sign, Subject, Tally
from harness.lab.experiment.launcher import OUTPUT
from harness.recording.run_spec import EntryCall, RunSpec
from harness.render.chaos import chaos_json, chaos_text, command, effect, sentence
from harness.trace.diff import diff
from harness.trace.verdict import Kind, Verdict, VerdictCode
from tests.support.manual import between
from tests.support.traces import flip_bit, steps_of, trace

ENTRY = RunSpec(("python",), call=EntryCall("a:b", {}))
FOREIGN = RunSpec(("python", "train.py", "--token", "hf_abcdefghijklmnopqrstuvwxyz0123456789"))
FACTORS = (Factor("runtime.n", range(1, 10)), Factor("threads", range(1, 3)))


@pytest.fixture
def moved(tmp_path: Path) -> Outcome:
    a = trace(tmp_path / "run-1", steps_of(4))
    b = trace(tmp_path / "run-2", steps_of(4, flip_bit(2, "backward", "layers.1.weight")))
    return Outcome(Sign.MOVED, 2, diff(a, b), directory=tmp_path / "run-2")


def chaos(finding: Finding | None, run_spec: RunSpec = ENTRY, **others: Any) -> Chaos:
    typed = ("tiny", "--size", "smoke") if run_spec.call else ("--level", "deterministic")
    plan = ChaosPlan(Subject(lambda values: run_spec, FACTORS, typed), FACTORS, Path("out"), seed=4)
    return Chaos(plan, finding, **{"num_probes": 7, "num_runs": 12, **others})


def found(outcome: Outcome, perturbation: dict[str, Any], **others: Any) -> Finding:
    rest = {"tally": Tally(3, 3), "without": Tally(0, 4), "drawn": {**perturbation, "hash_seed": 2}, "index": 7}
    return Finding(perturbation, outcome, **{**rest, **others})


def texts(moved: Outcome, directory: Path) -> Iterator[tuple[str, Chaos]]:
    """A search of each kind, with a title; `directory` is that of a run that broke."""
    output = directory / OUTPUT
    output.write_text("step 0\nerror: no such thing\n", encoding="utf-8")
    broke = Outcome(Sign.BROKE, 1, problem="exit code 1", directory=directory)
    missed = (NotApplied({"crash": "9.loss"}, "the crash never came: there is no step 9, the last is 2"),)
    only = replace(chaos(None).plan, only={"threads": 2, "runtime.n": 3})
    yield "one cause", chaos(found(moved, {"runtime.n": 3}))
    yield "several causes", chaos(found(moved, {"a.x": 3, "threads": 2, "crash": "2.end"}))
    yield "a run that broke", chaos(found(broke, {"threads": 2}))
    fault = VerdictCode.TRACE_INCOMPLETE(trace="B", message="manifest.json is missing or cut")
    unknown = Outcome(Sign.BROKE, 0, Verdict(Kind.INCOMPLETE, (fault,)), directory=directory)
    yield "a run that cannot be compared", chaos(found(unknown, {"threads": 2}))
    yield "a search that was cut short", chaos(found(moved, {"threads": 2}, is_smallest=False))
    yield "no perturbation needed", chaos(found(moved, {}, tally=Tally(2, 3), drawn={}, index=None))
    yield "nothing found", chaos(None)
    yield "nothing found by one perturbation", chaos(None, num_probes=1)
    yield "nothing found by the one asked for", replace(chaos(None), plan=only)
    yield "nothing found in time", chaos(None, is_out_of_time=True)
    yield "nothing found until a signal", chaos(None, interrupted_by="SIGINT", is_out_of_time=True)
    yield "out of time", chaos(None, is_out_of_time=True, num_probes=0, num_runs=2)
    yield "interrupted", chaos(None, interrupted_by="SIGINT", num_probes=0, num_runs=2)
    yield "no baseline", chaos(None, problem="it has no seed", remedy="give it --seed", output=output, num_probes=0)
    yield "not applied", chaos(None, num_probes=0, not_applied=missed)
    yield "one not applied", chaos(None, not_applied=missed)


def test_the_texts_are_the_golden(golden: Callable[[str, str], None], moved: Outcome, tmp_path: Path) -> None:
    shown = [f"{title}\n{chaos_text(each, colour=False)}\n" for title, each in texts(moved, tmp_path)]
    golden("chaos.txt", "\n".join(shown).replace(str(tmp_path), "DIR"))


def test_a_cause_is_called_what_the_scenario_calls_it(moved: Outcome) -> None:
    named = chaos(found(moved, {"runtime.n": 3, "threads": 2}))
    factors = tuple(replace(each, about=f"the {each.name[-1]}") for each in FACTORS[:1]) + FACTORS[1:]
    plan = replace(named.plan, subject=replace(named.plan.subject, factors=factors))
    assert sentence(replace(named, plan=plan)) == (
        "the combination of the n (runtime.n=3), threads=2 changes the gradient of layers.1.weight at step 2,"
        " in 3 of 3 runs"
    )
    assert sentence(chaos(None)) == ""


@pytest.mark.parametrize(
    ("phase", "name", "said"),
    [
        ("loss", "loss", "changes the loss at"),
        ("rollout", "tokens", "changes the tokens of the rollout at"),
        ("optimizer", "layers.0.weight", "changes layers.0.weight after the update at"),
        ("forward", "logprobs", "changes logprobs of the forward pass at"),
    ],
)
def test_what_has_moved_is_told_in_words(tmp_path: Path, phase: str, name: str, said: str) -> None:
    a, b = trace(tmp_path / "a", steps_of(2)), trace(tmp_path / "b", steps_of(2, flip_bit(1, phase, name)))
    assert effect(Outcome(Sign.MOVED, 1, diff(a, b))) == f"{said} step 1"


def test_a_step_that_is_missing_has_moved_too(tmp_path: Path) -> None:
    a, b = trace(tmp_path / "a", steps_of(3)), trace(tmp_path / "b", steps_of(2))
    assert effect(Outcome(Sign.MOVED, 2, diff(a, b))) == "changes the whole step at step 2"


def test_a_run_that_differs_from_itself_is_replayed(moved: Outcome) -> None:
    finding = found(moved, {}, tally=Tally(2, 3), drawn={}, index=None)
    assert sentence(chaos(finding)) == (
        "the run is nondeterministic without any perturbation: repeating it changes the gradient"
        " of layers.1.weight at step 2, in 2 of 3 runs"
    )
    told = chaos(finding)
    assert command(told) == "PYTHONHASHSEED=0 rlharness replay tiny --size smoke --runs 4"
    for usual, said in ((5, "PYTHONHASHSEED=5 rlharness"), (None, "rlharness")):
        factors = (*FACTORS, Factor("hash_seed", range(10), usual))
        plan = replace(told.plan, subject=replace(told.plan.subject, factors=factors))
        assert command(replace(told, plan=plan)) == f"{said} replay tiny --size smoke --runs 4"


def test_commands_of_others_are_told_without_their_secrets(moved: Outcome) -> None:
    told = chaos(found(moved, {"threads": 2}), FOREIGN)
    assert command(told) == (
        "rlharness chaos --level deterministic --only threads=2 -- python train.py --token '<redacted>'"
    )
    assert "hf_abc" not in json.dumps(chaos_json(told)) + chaos_text(told, colour=False)


def test_what_never_happened_is_told_and_nothing_is_said_of_it() -> None:
    missed = (NotApplied({"crash": "9.loss"}, "the crash never came: there is no step 9, the last is 2"),)
    none = chaos(None, num_probes=0, not_applied=missed)
    told = json.loads(json.dumps(chaos_json(none)))
    assert told["not_applied"] == [{"perturbation": {"crash": "9.loss"}, "why": missed[0].why}]
    assert told["exit_code"] == ExitCode.INCOMPLETE_RECORDING


def test_json_says_the_same(moved: Outcome) -> None:
    told = json.loads(json.dumps(chaos_json(chaos(found(moved, {"runtime.n": 3})))))
    assert (told["exit_code"], told["seed"], told["num_probes"], told["num_probes_wanted"]) == (10, 4, 7, 20)
    finding = told["finding"]
    assert finding["perturbation"] == {"runtime.n": 3}
    assert (finding["sign"], finding["step"]) == ("moved", 2)
    assert (finding["num_failed"], finding["num_runs"]) == (3, 3)
    assert finding["verdict"]["first"]["a"]["name"] == "layers.1.weight"
    assert finding["reproduce"].endswith("--only runtime.n=3")
    assert json.loads(json.dumps(chaos_json(chaos(None))))["finding"] is None


def test_the_example_of_the_manual_is_what_is_printed() -> None:
    """Its numbers are a machine's; its form is this reporter's."""
    head = between("<!-- example: chaos -->\n```text\n", "```").splitlines()
    assert re.fullmatch(
        r"DIVERGED  runtime\.world_size=4 alone changes the gradient of weight at step 0, in 3 of 3 runs", head[0]
    )
    assert head[1] == "  without perturbation: 0 of 4 runs differ"
    assert head[-1].startswith("  reproduce: rlharness chaos ")
