"""The sentinel on real ranks: replicas that differ are named within the cadence, and nothing else changes or ends."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.fixtures.ranks import Ranks, start_ranks
from harness.recording.sentinel_report import Finding, Moment, read_findings
from tests.support.watched_replicas import Case, Trained, train_watched

pytest.importorskip("torch")

NUM_RANKS = 4
FULL = pytest.mark.full
NUM_PARAMETERS = 4


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with closing(start_ranks(NUM_RANKS, timeout_s=300)) as group:
        yield group


def trained(ranks: Ranks, directory: Path, case: Case) -> tuple[list[Trained], list[Finding]]:
    """What became of a training on each rank, and what its sentinels found."""
    results = ranks.run(train_watched, case, str(directory))
    return results, [finding for _, finding in read_findings(directory)]


@pytest.mark.full
@pytest.mark.parametrize("layout", ["ddp", "fsdp2", pytest.param("hsdp", marks=FULL), "reduced", "flat"])
def test_clean_steps_raise_no_alarm_and_keep_their_bits(layout: str, ranks: Ranks, tmp_path: Path) -> None:
    case = Case(layout, num_steps=7, every=2)
    watched, findings = trained(ranks, tmp_path, case)
    plain, _ = trained(ranks, tmp_path, replace(case, every=0))
    assert findings == []
    assert watched == plain
    assert {each.ended for each in watched} == {""}


@pytest.mark.full
@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ("ddp", "weight"),
        ("hsdp", "weight"),
        ("reduced", "weight"),
        ("flat", "moment"),
        pytest.param("ddp", "moment", marks=FULL),
        pytest.param("hsdp", "moment", marks=FULL),
    ],
)
def test_a_flip_is_named_within_the_cadence_and_unnoticed_without(
    layout: str, kind: str, ranks: Ranks, tmp_path: Path
) -> None:
    case = Case(layout, num_steps=7, every=3, flip=f"2:1:{kind}:0:14")
    results, [finding] = trained(ranks, tmp_path, case)
    assert {each.ended for each in results} == {"differ"}
    assert (finding.step, finding.when, finding.last_equal_step) == (3, Moment.BEFORE_STEP, 0)
    named = {location.rank for location in finding.suspects}
    assert named == ({1, 3} if layout == "hsdp" else {1})
    assert {location.rank for location in finding.locations} == set(range(NUM_RANKS))
    assert all(location.host and location.device for location in finding.suspects)
    assert finding.differences[0].name.startswith("0.weight")

    unwatched, nothing = trained(ranks, tmp_path / "off", replace(case, every=0))
    assert ({each.ended for each in unwatched}, nothing) == ({""}, [])
    if layout == "ddp" and kind == "weight":
        assert len({each.weights for each in unwatched}) == 2, "the ranks trained different models, and nobody noticed"


@pytest.mark.full
@pytest.mark.parametrize(("layout", "kind"), [("fsdp2", "buffer"), ("reduced", "flag"), ("flat", "buffer")])
def test_a_buffer_or_a_training_flag_of_one_rank_is_named(layout: str, kind: str, ranks: Ranks, tmp_path: Path) -> None:
    """Batch statistics, which differ from rank to rank as they should, are no finding."""
    results, [finding] = trained(ranks, tmp_path, Case(layout, num_steps=7, every=2, flip=f"4:1:{kind}:0:9"))
    assert {each.ended for each in results} == {"differ"}
    assert (finding.step, finding.when) == (4, Moment.BEFORE_STEP)
    [difference] = finding.differences
    assert (difference.kind, difference.name) == (
        ("buffer", "scale") if kind == "buffer" else ("training flag of", "3")
    )
    assert {location.rank for location in finding.suspects} == {1}


@dataclass(frozen=True)
class Flip:
    """Where a bit is flipped."""

    step: int
    rank: int
    kind: str
    index: int
    bit: int

    def __str__(self) -> str:
        return f"{self.step}:{self.rank}:{self.kind}:{self.index}:{self.bit}"


def flips(kinds: list[str], first_step: int, last_step: int) -> st.SearchStrategy[Flip]:
    """Any bit of any parameter on any rank."""
    return st.builds(
        Flip,
        step=st.integers(first_step, last_step),
        rank=st.integers(0, NUM_RANKS - 1),
        kind=st.sampled_from(kinds),
        index=st.integers(0, NUM_PARAMETERS - 1),
        bit=st.integers(0, 10_000),
    )


@pytest.mark.full
@FULL
@settings(max_examples=12)
@given(flip=flips(["weight", "gradient", "moment"], 1, 3), layout=st.sampled_from(["ddp", "hsdp"]))
def test_any_bit_of_a_replica_is_found_before_its_step_is_applied(
    flip: Flip, layout: str, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> None:
    case = Case(layout, num_steps=5, every=1, flip=str(flip))
    results, [finding] = trained(ranks, tmp_path_factory.mktemp("flip"), case)
    assert {each.ended for each in results} == {"differ"}
    assert (finding.step, finding.when) == (flip.step, Moment.BEFORE_STEP)
    [difference] = finding.differences
    assert difference.kind == flip.kind
    pair = {flip.rank % 2, flip.rank % 2 + 2}
    assert {location.rank for location in finding.suspects} == ({flip.rank} if layout == "ddp" else pair)


@pytest.mark.full
@FULL
@settings(max_examples=12)
@given(flip=flips(["weight"], 0, 4))
def test_a_flip_between_two_comparisons_is_found_at_the_next_or_leaves_no_difference(
    flip: Flip, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """NaN spreads to all ranks in one step, with equal bits; and rounding may swallow a difference."""
    case = Case("ddp", num_steps=6, every=5, flip=str(flip))
    results, findings = trained(ranks, tmp_path_factory.mktemp("flip"), case)
    if not findings:
        assert len({each.weights for each in results}) == 1
        assert flip.step > 0
    else:
        expected = [(5 if flip.step else 0, {flip.rank})]
        assert [(each.step, {location.rank for location in each.suspects}) for each in findings] == expected


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "with_closure", "when"),
    [("step", False, Moment.AFTER_STEP), ("gradient", True, Moment.BEFORE_STEP)],
)
def test_a_wrong_step_and_a_gradient_of_a_closure_are_named(
    kind: str, with_closure: bool, when: Moment, *, ranks: Ranks, tmp_path: Path
) -> None:
    case = Case("ddp", num_steps=5, every=2, flip=f"2:3:{kind}:2:9", with_closure=with_closure)
    results, [finding] = trained(ranks, tmp_path, case)
    assert (finding.when, [location.rank for location in finding.suspects]) == (when, [3])
    assert {each.ended for each in results} == {"differ"}


def test_the_bundle_has_what_each_rank_held(ranks: Ranks, tmp_path: Path) -> None:
    _, [finding] = trained(ranks, tmp_path, Case("ddp", every=2, flip="2:1:gradient:0:9"))
    [(bundle, _)] = read_findings(tmp_path)
    assert bundle.name == "step-2-before_step"
    assert sorted(path.name for path in bundle.iterdir()) == [
        "manifest.json",
        *(f"rank-{rank}.safetensors" for rank in range(NUM_RANKS)),
    ]
    from safetensors.numpy import load_file

    kept = [load_file(bundle / f"rank-{rank}.safetensors") for rank in range(NUM_RANKS)]
    names = {key.rsplit("/", 1)[-1] for key in kept[0]}
    assert names >= {"0.weight", "0.weight exp_avg", "0.weight exp_avg_sq", "random.torch"}
    gradients = [each["physical/gradient/0/0.weight"].tobytes() for each in kept]
    assert gradients[0] == gradients[2] == gradients[3] != gradients[1]
    assert (finding.step, finding.when) == (2, Moment.BEFORE_STEP)


@pytest.mark.full
@FULL
def test_a_rank_that_does_not_come_is_not_waited_for_without_end(ranks: Ranks, tmp_path: Path) -> None:
    case = Case("ddp", num_steps=3, every=2, ends_at=2, timeout_s=20.0)
    results, findings = trained(ranks, tmp_path, case)
    assert [each.ended for each in results] == ["", "left", "", ""]
    assert findings == []
    for rank in (0, 2, 3):
        assert results[rank].problem.startswith("not every rank came to the comparison of step 2: ")
    assert "Ranks 1 failed" in results[0].problem, results[0].problem


@pytest.mark.full
def test_replicas_of_a_program_without_a_wrapper_are_compared_if_they_are_declared(
    ranks: Ranks, tmp_path: Path
) -> None:
    """Each rank of this program trains on its own data and averages nothing: undeclared, that is its own affair."""
    unknown, nothing = trained(ranks, tmp_path / "unknown", Case("plain", every=2))
    assert ({each.ended for each in unknown}, nothing) == ({""}, [])
    declared, [finding] = trained(ranks, tmp_path / "declared", Case("plain", every=2, is_declared=True))
    assert {each.ended for each in declared} == {"differ"}
    assert (finding.step, finding.when) == (0, Moment.BEFORE_STEP)
    assert {each.kind for each in finding.differences} == {"gradient"}
    assert {location.rank for location in finding.suspects} == set(range(NUM_RANKS))
