"""The planted difference is found, by the runs that it takes; what is none moves nothing."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("torch")

from harness.core.exit_codes import ExitCode
from harness.lab.experiments.recorded_run import read_recorded_run
from harness.lab.transplant.comparison import Effect
from harness.lab.transplant.executor import TransplantExecutor
from harness.lab.transplant.findings import Findings
from harness.lab.transplant.plan import make_plan
from harness.render.run_lines import RunLines
from harness.render.transplant import transplant_text
from tests.lab.bandit_runs import InProcess, bandit

pytestmark = pytest.mark.full

NOISE = {"num_parts": 5}


def searched(
    tmp_path: Path,
    a: dict[str, object],
    b: dict[str, object],
    *takes: str,
    step: int | None = None,
    session: InProcess | None = None,
) -> Findings:
    """What is found out about two bandits."""

    async def search() -> Findings:
        runs = await bandit(tmp_path / "a", **a), await bandit(tmp_path / "b", **b)
        plan = make_plan(*runs, takes, step=step, num_steps=None, is_once=False)
        (tmp_path / "out").mkdir()
        return await TransplantExecutor(plan.pair, session or InProcess(), tmp_path / "out", RunLines()).search(
            plan.patches
        )

    return asyncio.run(search())


def effects(findings: Findings) -> dict[str, Effect]:
    return {each.patch.title: each.effect for each in findings.outcomes}


@pytest.mark.parametrize(
    ("planted", "cause", "is_once_enough"),
    [
        ({"normalises": True}, "advantages", False),
        ({"reward": "doubled"}, "rewards", False),
        ({"spike": True}, "gradients", True),
        ({"runtime": NOISE}, "gradients", False),
    ],
)
def test_the_planted_difference_is_the_cause(
    tmp_path: Path, planted: dict[str, object], cause: str, is_once_enough: bool
) -> None:
    found = searched(tmp_path, {}, planted)
    assert found.cause is not None
    assert (found.cause.patch.take.text, found.cause.effect) == (cause, Effect.BECOMES_B)
    assert (found.exit_code, found.notes) == (ExitCode.OK, ())
    (once,) = (each for each in found.outcomes if each.patch.is_once)
    assert (once.effect is Effect.BECOMES_B) is is_once_enough
    assert all(each.to_b == 0 for each in found.cause.distances if each.name != "reward_mean" or cause != "rewards")


def test_what_comes_before_the_cause_moves_nothing(tmp_path: Path) -> None:
    """The negative: rewards and rollouts of B in A, where the gradient is what differs."""
    found = searched(tmp_path, {}, {"spike": True}, "rewards", "rollout", step=3)
    assert found.cause is None
    assert found.exit_code == ExitCode.DIVERGED
    assert all(each.effect is not Effect.BECOMES_B for each in found.outcomes)
    assert not any(each.is_near for each in found.outcomes)
    assert "\nNO CAUSE FOUND  no patch turns A into B\n" in transplant_text(found, colour=False)


def test_a_cause_is_told_from_noise_beside_it(tmp_path: Path) -> None:
    """Advantages explain the curve, the gradients' rounding is what is left."""
    found = searched(tmp_path, {}, {"normalises": True, "runtime": NOISE})
    assert found.cause is not None
    assert (found.cause.patch.take.text, found.cause.effect) == ("advantages", Effect.MOVES)
    assert found.cause.from_b is not None
    assert (found.cause.from_b.step, found.cause.from_b.phase) == (0, "backward")
    assert effects(found)["gradients, from step 0 on"] is Effect.BECOMES_B


def test_a_copy_has_no_effect(tmp_path: Path) -> None:
    found = searched(tmp_path, {"copies": True}, {"normalises": True}, "advantages")
    assert effects(found) == {"advantages, from step 0 on": Effect.NOTHING}
    assert found.exit_code == ExitCode.DIVERGED


def test_weights_are_those_that_the_step_begins_with(tmp_path: Path) -> None:
    found = searched(tmp_path, {}, {"spike": True}, "weights", "gradients", step=3)
    assert effects(found) == {
        "weights, with which step 3 begins": Effect.BECOMES_B,
        "gradients, from step 3 on": Effect.MOVES,
    }


def test_one_operation_is_put_in(tmp_path: Path) -> None:
    """Operation 4 of a step multiplies the rewards; in step 4, the last, there is nothing behind it that differs."""
    session = InProcess()
    found = searched(tmp_path, {}, {"reward": "doubled"}, "op:4", "op:0", "op:99", step=4, session=session)
    multiplied, before, absent = found.outcomes
    assert multiplied.num_put == 1
    assert (before.num_put, before.effect) == (1, Effect.MOVES)
    assert (absent.effect, absent.problem) == (Effect.DOES_NOT_FIT, "step 4 of B has no operation 99")
    assert session.names.count("donor-operation-4") == 1


def test_both_runs_are_repeated_once_and_what_is_large_is_kept_only_where_it_is_taken(tmp_path: Path) -> None:
    small, large = InProcess(), InProcess()
    searched(tmp_path / "small", {}, {"normalises": True}, "advantages", session=small)
    assert small.names == ["control", "donor", "advantages-from-step-0-on", "advantages-at-step-0-only"]
    searched(tmp_path / "large", {}, {"normalises": True}, "gradients", session=large)
    kept = [len(list((tmp_path / size / "out" / "donor").glob("run-1/tensors/*"))) for size in ("small", "large")]
    assert kept == [5, 5]
    sizes = [
        sum(path.stat().st_size for path in (tmp_path / size / "out" / "donor").glob("run-1/tensors/*"))
        for size in ("small", "large")
    ]
    assert sizes[0] < sizes[1]


def test_a_run_that_does_not_come_out_again_makes_everything_unproven(tmp_path: Path) -> None:
    async def search() -> Findings:
        a, b = await bandit(tmp_path / "a"), await bandit(tmp_path / "b", normalises=True)
        other = await bandit(tmp_path / "other", seed=2)
        (a.directory / "call.json").unlink()
        other.call.write(a.directory)
        a = read_recorded_run(a.directory)
        plan = make_plan(a, b, ["advantages"], step=None, num_steps=None, is_once=False)
        (tmp_path / "out").mkdir()
        return await TransplantExecutor(plan.pair, InProcess(), tmp_path / "out", RunLines()).search(plan.patches)

    found = asyncio.run(search())
    assert found.notes == ("A is not reproducible: step 0 has different bits when run again",)
    assert found.exit_code == ExitCode.NOT_COMPARABLE


def test_a_signal_ends_the_search_and_keeps_what_was_found(tmp_path: Path) -> None:
    found = searched(tmp_path, {}, {"normalises": True}, session=InProcess(ends_after=4))
    assert found.exit_code == ExitCode.INTERRUPTED
    assert list(effects(found)) == ["advantages, from step 0 on"]
    assert transplant_text(found, colour=False).startswith("interrupted by SIGINT; results so far:\n")


def test_a_run_that_broke_off_is_explained_as_far_as_it_went(tmp_path: Path) -> None:
    found = searched(tmp_path, {"breaks": 4}, {"spike": True}, "gradients")
    assert (found.pair.step, found.pair.last, found.notes) == (2, 3, ())
    assert set(effects(found).values()) == {Effect.BECOMES_B}
