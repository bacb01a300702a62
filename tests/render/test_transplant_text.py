"""What is said of a transplant."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core.exit_codes import ExitCode
from harness.lab.transplant.comparison import Distance, Effect, Outcome, Where
from harness.lab.transplant.findings import Findings, Pair
from harness.lab.transplant.patches import Patch, parse_patch
from harness.render.transplant import transplant_json, transplant_text
from tests.support.recorded_runs import recorded


def outcome(take: str, effect: Effect, *, is_once: bool = False, share: float = 1.0, problem: str = "") -> Outcome:
    patch = Patch(parse_patch(take), 2, 2 if is_once else 5, is_once)
    is_b = effect is Effect.BECOMES_B
    distances = () if problem else (Distance("reward_mean", 1.0, 0.5, 0.5 * share, 0.5 * (1 - share)),)
    where = None if is_b else Where(3, "backward", "policy.head", 1)
    return Outcome(
        patch,
        "out",
        effect,
        num_put=1,
        from_b=where,
        before=("reward rewards",) if is_b else (),
        distances=distances,
        num_reached=1200,
        num_apart=1300,
        problem=problem,
    )


def findings(tmp_path: Path, *outcomes: Outcome, **more: Any) -> Findings:
    pair = Pair(recorded(tmp_path / "a"), recorded(tmp_path / "b"), 2, 2, 5)
    return Findings(pair, tmp_path / "out", outcomes, **more)


def test_the_cause_is_the_first_from_which_b_follows(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        outcome("rewards", Effect.MOVES, share=0.25),
        outcome("advantages", Effect.BECOMES_B),
        outcome("advantages", Effect.MOVES, is_once=True, share=-0.5),
        outcome("gradients", Effect.BECOMES_B),
        outcome("sync", Effect.DOES_NOT_FIT, problem="sync digest at step 2: it is of type str"),
    )
    lines = transplant_text(found, colour=False).splitlines()
    assert len({line.index("1,200 of 1,300") for line in lines[3:8]}) == 1, "columns"
    assert [" ".join(line.split()) for line in lines] == [
        f"A: {tmp_path}/a B: {tmp_path}/b",
        "put in from step 2 on, and looked at up to step 5",
        "B's put into A what follows leaves value from A from B of the way to B",
        "rewards, from step 2 on not B: step 3, backward policy.head #1 1,200 of 1,300 reward_mean 0.125 0.375 25 %",
        "advantages, from step 2 on B, every bit 1,200 of 1,300 reward_mean 0.5 0 100 %",
        "advantages, at step 2 only not B: step 3, backward policy.head #1 1,200 of 1,300 reward_mean -0.25 0.75 -50 %",
        "gradients, from step 2 on B, every bit 1,200 of 1,300 reward_mean 0.5 0 100 %",
        "sync, from step 2 on cannot be put in 1,200 of 1,300",
        "sync, from step 2 on: sync digest at step 2: it is of type str",
        "CAUSE advantages, from step 2 on: with B's, A becomes B in every bit behind it, up to step 5",
        "differs before it, and is A's still: reward rewards",
        "once, at step 2, is not enough: it acts again later",
        "on the way from it to B: gradients",
        f"look closer: rlharness reproduce {tmp_path}/a --step 2 --trace-ops --against {tmp_path}/b",
        f"traces: {tmp_path}/out",
    ]
    told = transplant_json(found)
    assert (told["exit_code"], told["cause"]) == (ExitCode.OK, "advantages")
    assert told["transplants"][0]["first_not_b"] == {
        "step": 3,
        "phase": "backward",
        "name": "policy.head",
        "occurrence": 1,
    }


def test_what_could_not_be_put_in_is_not_forgotten(tmp_path: Path) -> None:
    refused = outcome(
        "rollout", Effect.DOES_NOT_FIT, problem="rollout tokens at step 2: it is i64 [4] in A, i64 [5] in B"
    )
    found = findings(tmp_path, refused, outcome("gradients", Effect.BECOMES_B))
    assert "\n  could not be put in, and may be why: rollout\n" in transplant_text(found, colour=False)


def test_what_explains_the_curve_but_for_noise_is_a_cause_too(tmp_path: Path) -> None:
    found = findings(tmp_path, outcome("advantages", Effect.MOVES, share=0.98), outcome("gradients", Effect.BECOMES_B))
    lines = transplant_text(found, colour=True).splitlines()
    assert lines[5:8] == [
        "\x1b[32mCAUSE\x1b[0m  advantages, from step 2 on: with B's, every value goes 98 % of the way to B, or more",
        "  not to the bit: what is left begins at step 3, backward policy.head #1",
        "  to the bit: gradients",
    ]


def test_what_stays_as_since_it_is_no_memory_is_counted(tmp_path: Path) -> None:
    for num_kept, said in ((1, "1 value stayed A's, being no tensor"), (2, "2 values stayed A's, being no tensors")):
        kept = replace(outcome("rollout", Effect.MOVES), num_kept=num_kept)
        assert f"\n  rollout, from step 2 on: {said}\n" in transplant_text(
            findings(tmp_path / said, kept), colour=False
        )


def test_nothing_found_is_said_and_so_is_what_proves_less(tmp_path: Path) -> None:
    found = findings(tmp_path, outcome("loss", Effect.NOTHING, share=0.0), notes=("A does not come out again",))
    lines = transplant_text(found, colour=False).splitlines()
    assert "  no effect  " in lines[3]
    assert lines[4:7] == [
        "  loss, from step 2 on: A in every bit still; what is recorded there is a copy, or nobody reads it",
        "NO CAUSE FOUND  from nothing that was put in does B follow",
        "  note: A does not come out again",
    ]
    assert found.exit_code == ExitCode.NOT_COMPARABLE


def test_where_nothing_was_tried_nothing_is_said_of_the_cause(tmp_path: Path) -> None:
    lines = transplant_text(findings(tmp_path, interrupted_by="SIGINT"), colour=False).splitlines()
    assert lines == [
        "interrupted by SIGINT, before anything was tried",
        f"A: {tmp_path}/a  B: {tmp_path}/b",
        "put in from step 2 on, and looked at up to step 5",
        "NOTHING TRIED  nothing of B was put into A: nothing is said of the cause",
        f"  look closer: rlharness diff {tmp_path}/a {tmp_path}/b",
        f"  traces: {tmp_path}/out",
    ]


def test_where_it_begins_is_told_where_the_two_part_before(tmp_path: Path) -> None:
    found = findings(tmp_path, outcome("loss", Effect.NOTHING, share=0.0))
    later = replace(found, pair=replace(found.pair, parts=1))
    line = transplant_text(later, colour=False).splitlines()[1]
    assert line == "they part at step 1; put in from step 2 on, and looked at up to step 5"
    assert (transplant_json(later)["first_difference"], transplant_json(later)["step"]) == (1, 2)


def test_other_configurations_are_told(tmp_path: Path) -> None:
    found = findings(tmp_path, outcome("loss", Effect.NOTHING, share=0.0))
    assert "also different" not in transplant_text(found, colour=False)
    assert transplant_json(found)["identity_differences"] == []
    trace, manifest = found.pair.b.trace, found.pair.b.trace.manifest
    assert manifest is not None
    identity = {**manifest.fingerprint.identity, "optimizer.learning_rate": "0.1"}
    manifest = replace(manifest, fingerprint=replace(manifest.fingerprint, identity=identity))
    b = replace(found.pair.b, trace=replace(trace, manifest=manifest))
    other = replace(found, pair=replace(found.pair, b=b))
    assert "\nalso different: optimizer.learning_rate A absent B 0.1\n" in transplant_text(other, colour=False)
    assert transplant_json(other)["identity_differences"] == [
        {"name": "optimizer.learning_rate", "a": None, "b": "0.1"}
    ]
