"""Everything that a step reads of its batch is recorded: the rollouts of one run, put into another, make its step."""

from pathlib import Path

import pytest

from harness.recording.callbacks import RecorderCallback
from harness.recording.patch_report import Fate, read_report
from harness.recording.patches import Transplant
from harness.recording.recorder import Recorder
from harness.trace.chain import RecordedValue
from harness.trace.curve_diff import common_points
from harness.trace.reader import Trace
from harness.trace.value_diff import compare_values
from rlcore.config import RunConfig
from rlcore.entrypoint import train
from rlcore.errors import RlcoreError
from tests.rlcore.training.recorded import config
from tests.support.recorded_steps import record
from tests.support.run_configs import with_section

pytestmark = pytest.mark.full

ROLLOUT = ("prompt_ids", "loss_mask", "tokens", "logprobs", "prompt_lengths", "lengths", "groups")


def made(of: RunConfig, directory: Path, *callbacks: RecorderCallback) -> Trace:
    """The trace of a run."""

    def program(recorder: Recorder) -> None:
        train(of, level="invariant", directory=directory / "run", recorder=recorder)

    return record(directory, program, *callbacks)


def of_step(trace: Trace) -> list[RecordedValue]:
    """What is recorded of step 0, without the evaluation before it, which is the run's own."""
    return [value for value in trace.columns(0, 0).values() if not value.name.startswith("evaluation.")]


def moved(name: str, tmp_path: Path, *, leaves: tuple[str, ...]) -> tuple[Trace, Trace, Trace]:
    """A, which filters what it draws, B, which does not, and A with these of B's rollout and its rewards in step 0."""
    b = with_section(config(name), "training", {"num_steps": 1, "microbatch_size": 1})
    a = with_section(b, "sampling", {"max_tokens": 8, "top_k": 4})
    traces = made(a, tmp_path / "a"), made(b, tmp_path / "b")
    taken = [["rollout", leaf] for leaf in leaves]
    report = str(tmp_path / "transplant.jsonl")
    patch = Transplant(str(tmp_path / "b"), report, first=0, last=0, phases=["reward"], values=taken)
    return *traces, made(a, tmp_path / "made", patch)


@pytest.mark.parametrize("name", [pytest.param("grpo", marks=pytest.mark.full), "ppo"])
def test_as_rollouts_and_rewards_become_bs_so_do_curve_and_weights(name: str, tmp_path: Path) -> None:
    a, b, found = moved(name, tmp_path, leaves=ROLLOUT)
    fates = {each.name: each.fate for each in read_report(tmp_path)}
    assert fates["tokens"] is fates["lengths"] is fates["rewards"] is Fate.PUT
    assert Fate.UNLIKE not in fates.values()
    ((_, apart, of_b),) = common_points(a, b)
    assert apart["reward_mean"] != of_b["reward_mean"]
    ((_, own, _),) = common_points(found, b)
    assert own == of_b
    assert compare_values(of_step(found), of_step(b)).first is None


def test_without_the_lengths_a_pass_reads_as_far_as_as_own_completions_went(tmp_path: Path) -> None:
    """They decide how far a lane is read, and A's are shorter than what is put in."""
    with pytest.raises(RlcoreError):
        moved("grpo", tmp_path, leaves=tuple(name for name in ROLLOUT if name != "lengths"))
