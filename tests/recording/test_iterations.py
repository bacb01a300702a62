"""Steps of the trace are a program's iterations: several optimizers, steps left out, steps within backward, threads."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.lab.experiment.recording_result import Recording, finish
from harness.recording import program_state
from harness.recording.automatic import TraceSteps
from harness.recording.process import write_report
from harness.recording.program_state import TrainingThreads
from harness.recording.run_spec import PROCESSES, Report, RunSpec
from harness.trace import read_trace
from harness.trace.format import Scope
from tests.support.recorded_programs import compared, program, record, run
from tests.support.verified import verify

EXPECTED = [
    *["lr"] * 2,  # the only optimizer has no name
    *["SGD#2 AdamW", "SGD#2", "SGD#2 AdamW"],
    *["Adam#2", "Adam"] * 2,
    *["RMSprop", "RMSprop skipped", "RMSprop"],
    *["Adagrad#2 Adagrad"] * 2,
    *["Rprop"] * 2,
    *["Adamax ASGD"] * 2,
    *["Wrapping"] * 2,
    *["SGD#3"] * 2,
    *["SGD#4"] * 2,
    *["SGD#5"] * 2,
]


@pytest.mark.full
def test_steps_are_counted_and_named_as_iterations_and_no_bit_changes(tmp_path: Path) -> None:
    weights = [tmp_path / "plain.pt", tmp_path / "recorded.pt"]
    commands = [program("iterations", "--weights", str(each)) for each in weights]
    with ThreadPoolExecutor() as pool:
        recorded = pool.submit(record, tmp_path / "a", commands[1])
        plain = run(*commands[0])
    assert plain.exit_code == 0, plain.errors
    one, other = (torch.load(each) for each in weights)
    assert all(torch.equal(one[key], other[key]) for key in one)

    trace = read_trace(tmp_path / "a")
    assert (trace.gaps, verify(trace)) == ((), [])
    found = []
    for step in trace.steps:
        values = trace.ranks[0].columns(step).values()
        names = [each.name for each in values if each.phase == "optimizer"]
        told = [name.partition(".")[0] for name in names if name.endswith(".step")] or ["lr"]
        found.append(" ".join([*told, *("skipped" for name in names if name.endswith(".skipped"))]))
        assert [each.name for each in values if each.phase == "loss"] == ["loss"], "a backward within another is no own"
    assert found == EXPECTED
    nested = trace.ranks[0].columns(EXPECTED.index("Wrapping")).values()
    scopes = [each.scope for each in nested if each.phase == "backward" and each.name.endswith("weight")]
    assert scopes == [Scope.PHYSICAL, Scope.LOGICAL], "made once, though two optimizers have the parameter"
    assert "GradScaler skipped 1 of 26 steps: gradients were not finite" in recorded.result().errors


# ------------------------------------------------------------------------------------- which steps are one of the trace

Events = list[str | None]
"""An optimizer's name for its step, None for a backward."""
SEQUENCES = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30)


def steps_of(end_step: Callable[..., object] = lambda **_: None) -> TraceSteps:
    """Steps of a trace that nothing is recorded of."""
    recorder: Any = SimpleNamespace(step=0, end_step=end_step)
    log: Any = SimpleNamespace(orders=SimpleNamespace(op_step=None), is_recording=True)
    return TraceSteps(log, recorder, lambda what: what())


def joined(events: Events, leaves_gradients: Callable[[], bool]) -> list[list[tuple[int, str]]]:
    """The optimizers of each step of the trace, each with the number of its event."""
    found: list[list[tuple[int, str]]] = [[]]
    steps, weight = steps_of(lambda **_: found.append([])), torch.nn.Parameter(torch.ones(1))
    optimizers = {name: torch.optim.SGD([weight]) for name in "abcd"}
    for index, name in enumerate([*events, None]):
        if name is None:
            steps.settle()
        else:
            steps.join(optimizers[name])
            found[-1].append((index, name))
            steps.end_or_wait([optimizers[name]], lambda _: leaves_gradients())
            steps.finish()
    assert found.pop() == []
    return found


@given(SEQUENCES, st.randoms(use_true_random=False))
def test_every_step_of_an_optimizer_is_in_one_step_of_the_trace(events: Events, random: Any) -> None:
    found = joined(events, lambda: random.random() < 0.5)
    assert [each for step in found for each in step] == [(i, name) for i, name in enumerate(events) if name]
    for step in found:
        assert len({name for _, name in step}) == len(step), "no optimizer steps twice in one"
        assert step[-1][0] - step[0][0] == len(step) - 1, "and no backward lies between"


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True), st.integers(1, 4), st.booleans())
def test_optimizers_that_follow_each_other_are_one_step_at_the_latest_from_the_second_iteration(
    names: list[str], num_iterations: int, is_seen: bool
) -> None:
    """`is_seen`: that the others have gradients left, which need not be so: then the first iteration is several."""
    iteration: Events = [None, *names]
    found = [[name for _, name in step] for step in joined(iteration * num_iterations, lambda: is_seen)]
    first = [names] if is_seen else [[name] for name in names]
    assert found == first + [names] * (num_iterations - 1)


@pytest.mark.full
def test_the_order_in_which_optimizers_are_made_does_not_count(tmp_path: Path) -> None:
    """Which is that of a set of text, as in Pyro: no value of the program depends on it."""
    with ThreadPoolExecutor() as pool:
        recordings = [
            pool.submit(record, tmp_path / seed, program("late_optimizers"), env={"PYTHONHASHSEED": seed})
            for seed in ("1", "2")
        ]
    for each in recordings:
        each.result()
    verdict = compared(tmp_path / "1", tmp_path / "2")
    assert (verdict["verdict"], verdict["first"]) == ("equal", None)
    trace = read_trace(tmp_path / "1")
    assert len(trace.steps) == 4 + 4 + 4 + 3 + 4 + 5, (
        "iterations with a step; in one kind, another optimizer ends the first"
    )
    first = {each.name for each in trace.ranks[0].columns(0).values() if each.phase == "backward"}
    assert first == {f"parameter{index}" for index in range(5)}


def test_an_optimizer_is_named_by_its_class_if_it_is_not_the_only_one() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    steps = steps_of()
    first, second, third = torch.optim.SGD([weight]), torch.optim.Adam([weight]), torch.optim.SGD([weight])
    steps.meet(first)
    assert steps.count(first) == ("", 0)
    for each in (second, third, first):
        steps.meet(each)
    assert [steps.count(each) for each in (third, first, third)] == [("SGD#2.", 0), ("", 1), ("SGD#2.", 1)]
    assert steps.living() == [first, second, third]
    several = steps_of()
    for each in (first, second):
        several.meet(each)
    assert several.count(first) == ("SGD.", 0)
    late = steps_of()
    for each in (first, second):
        late.meet(each)
    assert [late.count(each, "head.weight") for each in (second, second)] == [
        ("Adam of head.weight.", 0),
        ("Adam of head.weight.", 1),
    ]
    assert late.count(first) == ("SGD.", 0)


# ------------------------------------------------------------------------------------------------- steps left out


@pytest.mark.parametrize(
    ("num_skipped", "expected"),
    [
        (0, ()),
        (1, ("rank 0: GradScaler skipped 1 of 4 steps: gradients were not finite; these steps have a value named"
             " skipped",)),
        (4, ("rank 0: GradScaler skipped all 4 steps: no gradient was finite, and no weight has moved",)),
    ],
)  # fmt: skip
def test_a_recording_says_how_many_steps_were_left_out(
    num_skipped: int, expected: tuple[str, ...], tmp_path: Path
) -> None:
    report = Report(pid=1, argv=(), python="", rank=0, num_steps=4, is_closed=True, num_skipped=num_skipped)
    write_report(tmp_path / PROCESSES, report)
    recorded: Recording = finish(tmp_path, RunSpec(argv=("python",)), 0)
    assert tuple(note for note in recorded.notes if "GradScaler" in note) == expected


# -------------------------------------------------------------------------------------------------------- threads


def in_thread(what: Callable[[], bool]) -> bool:
    """What a function returns in a thread of its own, which ends."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(what).result()


@pytest.fixture
def living_thread() -> Iterator[Callable[[Callable[[], bool]], bool]]:
    """Calls a function in another thread, which lives on until the test ends."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda what: pool.submit(what).result()


@pytest.mark.parametrize("is_within_step", [False, True])
def test_threads_may_train_after_each_other(is_within_step: bool) -> None:
    threads = TrainingThreads()
    assert not threads.is_another
    for _ in range(3):
        assert in_thread(lambda: threads.admit(is_within_step=is_within_step))
    assert threads.admit(is_within_step=is_within_step), "the last one has ended"
    assert in_thread(lambda: threads.is_another)


def test_training_moves_on_between_two_steps(living_thread: Callable[[Callable[[], bool]], bool]) -> None:
    threads = TrainingThreads()
    assert threads.admit(is_within_step=False)
    assert not living_thread(lambda: threads.admit(is_within_step=True)), "both at once"
    assert living_thread(lambda: threads.admit(is_within_step=False))
    assert living_thread(lambda: threads.admit(is_within_step=True))
    assert not threads.admit(is_within_step=False), "it has come back, and the other one lives"


def test_a_thread_of_the_autograd_engine_belongs_to_the_one_that_called_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = TrainingThreads()
    assert threads.admit(is_within_step=False)
    num_threads = len(threading.enumerate())
    monkeypatch.setattr(program_state, "is_in_backward", lambda: True)
    assert in_thread(lambda: threads.admit(is_within_step=True) and not threads.is_another)
    monkeypatch.undo()
    assert threads.admit(is_within_step=True), "it trains still"
    assert len(threading.enumerate()) == num_threads
