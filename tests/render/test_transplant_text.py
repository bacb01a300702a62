"""What is said of a transplant."""

from collections.abc import Callable
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


CASES: dict[str, tuple[tuple[Outcome, ...], dict[str, Any]]] = {
    "a cause": (
        (
            outcome("rewards", Effect.MOVES, share=0.25),
            outcome("advantages", Effect.BECOMES_B),
            outcome("advantages", Effect.MOVES, is_once=True, share=-0.5),
            outcome("gradients", Effect.BECOMES_B),
            outcome("sync", Effect.DOES_NOT_FIT, problem="sync digest at step 2: it is of type str"),
        ),
        {},
    ),
    "a patch that does not fit": (
        (
            outcome("rollout", Effect.DOES_NOT_FIT, problem="rollout tokens at step 2: i64 [4] in A, i64 [5] in B"),
            outcome("gradients", Effect.BECOMES_B),
        ),
        {},
    ),
    "a cause but for noise": (
        (outcome("advantages", Effect.MOVES, share=0.98), outcome("gradients", Effect.BECOMES_B)),
        {},
    ),
    "one value that is no tensor": ((replace(outcome("rollout", Effect.MOVES), num_kept=1),), {}),
    "values that are no tensors": ((replace(outcome("rollout", Effect.MOVES), num_kept=2),), {}),
    "no effect": ((outcome("loss", Effect.NOTHING, share=0.0),), {"notes": ("A is not reproduced",)}),
    "nothing tried": ((), {"interrupted_by": "SIGINT"}),
}


def test_the_texts_are_the_golden(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    texts = []
    for number, (title, (outcomes, more)) in enumerate(CASES.items()):
        directory = tmp_path / str(number)
        text = transplant_text(findings(directory, *outcomes, **more), colour=False)
        texts.append(f"{title}\n{text.replace(str(directory), 'DIR')}\n")
    golden("transplant.txt", "\n".join(texts))


def test_the_cause_is_the_first_patch_that_turns_a_into_b(tmp_path: Path) -> None:
    found = findings(tmp_path, *CASES["a cause"][0])
    told = transplant_json(found)
    assert (told["exit_code"], told["cause"]) == (ExitCode.OK, "advantages")
    assert told["transplants"][0]["first_not_b"] == {
        "step": 3,
        "phase": "backward",
        "name": "policy.head",
        "occurrence": 1,
    }
    assert [told["transplants"][0][f"num_values_{what}"] for what in ("reached", "different")] == [1200, 1300]


def test_the_label_has_a_colour(tmp_path: Path) -> None:
    outcomes, more = CASES["a cause but for noise"]
    assert "\n\x1b[32mCAUSE\x1b[0m  " in transplant_text(findings(tmp_path, *outcomes, **more), colour=True)


def test_a_run_that_is_not_reproduced_proves_less(tmp_path: Path) -> None:
    outcomes, more = CASES["no effect"]
    assert findings(tmp_path, *outcomes, **more).exit_code == ExitCode.NOT_COMPARABLE


def test_where_it_begins_is_told_where_the_two_part_before(tmp_path: Path) -> None:
    found = findings(tmp_path, outcome("loss", Effect.NOTHING, share=0.0))
    later = replace(found, pair=replace(found.pair, parts=1))
    line = transplant_text(later, colour=False).splitlines()[1]
    assert line == "first difference at step 1; patched from step 2 on, compared up to step 5"
    assert (transplant_json(later)["first_difference"], transplant_json(later)["step"]) == (1, 2)


def test_other_configurations_are_told(tmp_path: Path) -> None:
    found = findings(tmp_path, outcome("loss", Effect.NOTHING, share=0.0))
    assert "configurations differ" not in transplant_text(found, colour=False)
    assert transplant_json(found)["identity_differences"] == []
    trace, manifest = found.pair.b.trace, found.pair.b.trace.manifest
    assert manifest is not None
    identity = {**manifest.fingerprint.identity, "optimizer.learning_rate": "0.1"}
    manifest = replace(manifest, fingerprint=replace(manifest.fingerprint, identity=identity))
    b = replace(found.pair.b, trace=replace(trace, manifest=manifest))
    other = replace(found, pair=replace(found.pair, b=b))
    assert (
        "\nthe configurations differ, which no patch changes: optimizer.learning_rate A absent B 0.1\n"
        in transplant_text(other, colour=False)
    )
    assert transplant_json(other)["identity_differences"] == [
        {"name": "optimizer.learning_rate", "a": None, "b": "0.1"}
    ]
