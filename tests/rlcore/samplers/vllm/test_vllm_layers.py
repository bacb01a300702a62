"""Policy, replicas and reward model served by vLLM: arrival moves no bit, unless rewards are computed in batches."""

from pathlib import Path

from tests.rlcore.training.recorded import first_difference, recorded
from tests.support.five_layers import LAYERS, difference_without, run_of
from tests.support.vllm_engines import need_vllm

need_vllm()


def test_runs_agree_and_without_serial_rewards_they_do_not(tmp_path: Path) -> None:
    reference, jittered = (
        recorded(run_of("vllm", num_steps=5, is_jittered=is_jittered), tmp_path / str(is_jittered))
        for is_jittered in (False, True)
    )
    assert first_difference(reference, jittered) is None and jittered.curve == reference.curve
    assert {step for step, *_ in reference.leaves} == set(range(5))
    assert {"rollout", "reward", "backward", "optimizer"} <= {phase for _, phase, *_ in reference.leaves}
    found = difference_without(LAYERS[-1], reference, "vllm", tmp_path, num_steps=5)
    assert found is not None and found[1] == "reward"
