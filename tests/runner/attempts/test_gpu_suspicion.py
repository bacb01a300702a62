"""GPUs on which different files keep failing: when one is suspected, when not, and what a run does with it."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from harness.runner.attempts.gpu_checks import BLAMED, CLEARING, MIN_FILES, GpuSuspicion
from harness.runner.units import Outcome

FILES = [f"test_{number}.py" for number in range(5)]
ENDS = st.tuples(
    st.sampled_from(FILES),
    st.sampled_from([Outcome.FAILED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.PASSED, Outcome.INTERRUPTED]),
    st.sampled_from([("a",), ("a",), ("b",), ("b",), ("a", "b")]),
)
End = tuple[str, Outcome, tuple[str, ...]]


def is_suspected(gpu_id: str, ends: Sequence[End]) -> bool:
    """Whether what has ended so far, the latest end being a failure on this GPU, makes it suspected."""

    def failed_on(gpu: str) -> set[str]:
        here = [(path, outcome) for path, outcome, gpus in ends if gpu in gpus]
        since = max((number for number, (_, outcome) in enumerate(here) if outcome in CLEARING), default=-1)
        return {path for path, outcome in here[since + 1 :] if outcome in BLAMED}

    others = {gpu for _, _, gpus in ends for gpu in gpus} - {gpu_id}
    passed = {path for path, outcome, gpus in ends if outcome in CLEARING and set(gpus) & others}
    failed = failed_on(gpu_id).difference(*(failed_on(other) for other in others))
    return len(failed) >= MIN_FILES and len(passed) >= MIN_FILES


@given(st.lists(ENDS, min_size=8, max_size=40))
def test_a_gpu_is_suspected_exactly_after_failures_of_different_files_and_passes_elsewhere(ends: list[End]) -> None:
    suspicion = GpuSuspicion()
    for number, (path, outcome, gpu_ids) in enumerate(ends, 1):
        suspected = suspicion.observe(path, outcome, gpu_ids)
        wanted = {gpu_id for gpu_id in gpu_ids if outcome in BLAMED and is_suspected(gpu_id, ends[:number])}
        assert set(suspected) == wanted


def observed(*ends: tuple[str, Outcome, str]) -> dict[str, str]:
    """What the last of these ends makes suspected."""
    suspicion = GpuSuspicion()
    return [suspicion.observe(path, outcome, (gpu_id,)) for path, outcome, gpu_id in ends][-1]


FINE = [(path, Outcome.PASSED, "b") for path in FILES[:MIN_FILES]]
SICK = [(f"test_sick_{number}.py", Outcome.FAILED, "a") for number in range(MIN_FILES)]


def test_a_pass_on_a_gpu_clears_it() -> None:
    assert observed(*FINE, *SICK[:-1], ("test_ok.py", Outcome.PASSED, "a"), SICK[-1]) == {}
    assert observed(*FINE, *SICK[:-1], ("test_ok.py", Outcome.INTERRUPTED, "a"), SICK[-1])


def test_only_an_end_that_a_sick_gpu_can_cause_makes_it_suspected() -> None:
    for outcome in Outcome:
        found = observed(*FINE, *SICK[:-1], ("test_last.py", outcome, "a"))
        can_cause = outcome in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.EXITED_EARLY)
        assert bool(found) is can_cause, outcome
    assert observed(*FINE, *SICK, ("test_other.py", Outcome.FAILED, "c")) == {}, "only its own GPU"
    assert observed(*FINE, *SICK, ("test_other.py", Outcome.INTERRUPTED, "a")) == {}


def test_the_latest_files_are_named() -> None:
    more = [(f"test_more_{number}.py", Outcome.FAILED, "a") for number in range(MIN_FILES)]
    (reason,) = observed(*FINE, *SICK, *more).values()
    assert all(path in reason for path, _, _ in more)
    assert not any(path in reason for path, _, _ in SICK)
    assert f"{2 * MIN_FILES} files" in reason
