"""What the comparison with TRL makes of its figures."""

from typing import Any

import pytest

from tests.benchmarks.engine_vs_trl import INVARIANT, OFF, SIZES, TRL, TRL_PLAIN, Child, describe, judge

NO_PROCESS: Any = None


def child(name: str, step_s: float = 1.0, *, update_s: float = 0.1, peak_bytes: float = 1e9) -> Child:
    times = {"rollout": 0.1, "update": update_s, "step": step_s}
    step = {f"{kind}/{part}": seconds for kind in ("wall", "cpu") for part, seconds in times.items()}
    slow = {key: 100.0 * seconds for key, seconds in step.items()}  # a median does not see it
    rounds = [{**each, "peak_bytes": peak_bytes} for each in (step, slow, step)]
    return Child(name, NO_PROCESS, steps=rounds, products_share=0.5, flops=1e9)


def judged(**ours: Any) -> tuple[list[str], bool]:
    others = {TRL: child(TRL), TRL_PLAIN: child(TRL_PLAIN), OFF: child(OFF, 0.5)}
    return judge(SIZES["1M"], {**others, INVARIANT: child(INVARIANT, **{"step_s": 0.4, **ours})})


def test_twice_as_fast_is_enough_at_1m() -> None:
    lines, is_good = judged()
    assert is_good
    assert "2.50 times its tokens/s" in lines[0]
    assert "target 2: PASS" in lines[0]


@pytest.mark.parametrize(
    ("ours", "line", "text"),
    [
        ({"step_s": 0.6}, 0, "target 2: FAIL"),
        ({"peak_bytes": 1.1e9}, 0, "1.10 times its memory: FAIL"),
        ({"update_s": 0.12}, 2, "update 1.20 times, goal 1.15: FAIL"),
    ],
)
def test_each_missed_target_fails(ours: dict[str, float], line: int, text: str) -> None:
    lines, is_good = judged(**ours)
    assert not is_good
    assert text in lines[line]


def test_a_step_is_described_with_its_parts_and_its_floor() -> None:
    text = describe(child(OFF, 0.5), peak_per_s=1e10)
    assert "500 ms" in text
    assert "4,096 tokens/s" in text
    assert "rest 300 ms" in text
    assert "products, attention 50% of it" in text
    assert "at peak 100 ms: 5.0 times the floor" in text
