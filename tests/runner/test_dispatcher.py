"""Decisions of a run: who starts, who ends, and one outcome each whatever happens. Attempts follow scripts."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.exit_codes import ExitCode
from harness.machine.gpu_health import GpuProcess
from harness.runner import events
from harness.runner.dispatcher import Dispatcher
from harness.runner.need import Need
from harness.runner.records.stats import exit_code
from harness.runner.units import NeedSource, Outcome, Unit
from tests.runner.scripted_run import GPU_0, GPU_1, ScriptedRun, after, begun, told
from tests.support.fake_meter import FakeMeter
from tests.support.scripted_attempts import FAILING, Script

FOREVER = 10**6
HELD = 5 * 10**9


def cancel(dispatcher: Dispatcher) -> None:
    dispatcher.request_cancel("SIGINT")


def test_every_unit_is_run_and_every_lease_comes_back(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, [0, 1, 2, 1, 0, 2]).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.PASSED] * 6
    kinds = [type(event).__name__ for event in run.kept.events if getattr(event, "path", "") == "test_1.py"]
    assert kinds == ["AttemptStarted", "TestStarted", "TestFinished", "LeaseReturned"]
    last = [event for event in run.kept.events if isinstance(event, events.UnitFinished)][-1]
    assert run.kept.events[-1] is last


def test_nothing_is_started_while_there_is_news_that_was_not_taken(tmp_path: Path) -> None:
    broken = Unit("test_broken.py", Need(), NeedSource.IMPORT, collect_error="E   SyntaxError: no")
    run = ScriptedRun(tmp_path, [broken, 0, 0], options={"maxfail": 1}).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.COLLECT_ERROR, Outcome.NOT_RUN, Outcome.NOT_RUN]
    assert run.results[0].reason == "SyntaxError: no"
    assert run.attempts.log == []


def test_maxfail_counts_files_and_zero_is_no_limit(tmp_path: Path) -> None:
    failing = Script(report=FAILING, exit_code=1)
    scripts = dict.fromkeys(range(5), failing)
    two = ScriptedRun(tmp_path / "two", [0] * 5, scripts, cpu_units=1, options={"maxfail": 2}).run()
    assert [outcome is Outcome.FAILED for outcome in two.outcomes] == [True, True, False, False, False]
    one = ScriptedRun(tmp_path / "one", [0] * 4, {2: failing}, cpu_units=1, options={"maxfail": 1}).run()
    assert one.outcomes == [Outcome.PASSED, Outcome.PASSED, Outcome.FAILED, Outcome.NOT_RUN]
    none = ScriptedRun(tmp_path / "none", [0] * 5, scripts, cpu_units=1, options={"maxfail": 0}).run()
    assert none.outcomes == [Outcome.FAILED] * 5


@pytest.mark.parametrize(("num_requests", "waited_s"), [(1, 20.0), (2, 2.0)])
def test_who_is_killed_does_not_wait_long_for_memory(tmp_path: Path, num_requests: int, waited_s: float) -> None:
    class Held(FakeMeter):
        """The GPU of a unit that does not give its memory back; a question takes a second."""

        def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
            run.clock.advance(1.0)
            return {GPU_0: HELD if ("begins", 0) in run.attempts.log else 0}

    limits = {"poll_s": 0.0, "wait_s": 20.0, "answer_s": 5.0}
    deaf = Script(num_steps=FOREVER, grace_steps=0 if num_requests == 1 else FOREVER)
    acts = [(begun(0), cancel), (told(events.AttemptTerminating), cancel)]
    run = ScriptedRun(tmp_path, [1], {0: deaf}, meter=Held(), card_limits=limits, acts=acts[:num_requests])
    run.run().assert_sound()
    (held,) = run.of(events.GpuQuarantined)
    (ended,) = run.of(events.AttemptTerminating)
    assert waited_s <= held.t - ended.t <= waited_s + 2


def test_a_request_after_maxfail_is_the_first(tmp_path: Path) -> None:
    scripts = {0: Script(report=FAILING, exit_code=1), 1: Script(num_steps=FOREVER)}
    run = ScriptedRun(
        tmp_path, [0, 0, 0], scripts, options={"maxfail": 1}, acts=[(told(events.CancelRequested), cancel)]
    ).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.FAILED, Outcome.INTERRUPTED, Outcome.NOT_RUN]
    assert [event.kill for event in run.of(events.CancelRequested)] == [False, False]


@pytest.mark.parametrize("turn", range(12))
def test_a_cancel_reaches_a_unit_that_has_only_just_begun(tmp_path: Path, turn: int) -> None:
    run = ScriptedRun(tmp_path, [1], {0: Script(num_steps=FOREVER)}, acts=[(after(turn), cancel)]).run()
    run.assert_sound()
    assert run.outcomes[0] in (Outcome.INTERRUPTED, Outcome.NOT_RUN)


def test_when_the_last_card_is_quarantined_those_who_wait_for_it_are_not_run(tmp_path: Path) -> None:
    meter = FakeMeter({GPU_0: 0})

    def leak(dispatcher: Dispatcher) -> None:
        meter.used_bytes[GPU_0] = HELD

    run = ScriptedRun(
        tmp_path, [1, 1, 0], {0: Script(num_steps=50)}, num_gpus=1, cpu_units=1, meter=meter, acts=[(begun(0), leak)]
    ).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.PASSED, Outcome.NOT_RUN, Outcome.PASSED]
    assert run.results[1].for_want_of_gpus
    assert "quarantine" in run.results[1].reason
    (held,) = run.of(events.GpuQuarantined)
    assert (held.gpu_id, held.path) == (GPU_0, "test_0.py")
    assert "5.0 GB above its baseline" in held.reason


def test_a_card_whose_driver_hangs_is_quarantined_and_nobody_waits_for_it(tmp_path: Path) -> None:
    meter = FakeMeter({GPU_0: 0, GPU_1: 0}, silent={GPU_1})
    limits = {"poll_s": 0.0, "wait_s": 0.0, "answer_s": 0.05}
    run = ScriptedRun(tmp_path, [2, 1, 1, 2], meter=meter, card_limits=limits).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.NOT_RUN, Outcome.PASSED, Outcome.PASSED, Outcome.NOT_RUN]
    (held,) = run.of(events.GpuQuarantined)
    assert held.gpu_id == GPU_1
    assert "did not answer within 0.05 s" in held.reason
    assert run.of(events.LeaseReturned)[0].gpu_ids == (GPU_0,)


def test_a_unit_whose_gpu_is_unfit_starts_first_on_another(tmp_path: Path) -> None:
    meter = FakeMeter({GPU_0: HELD, GPU_1: 0}, {GPU_0: (GpuProcess(7, HELD, "python train.py"),)})
    run = ScriptedRun(tmp_path, [1, 1, 1, 0], meter=meter).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.PASSED] * 4
    (held,) = run.of(events.GpuQuarantined)
    (refused,) = run.of(events.LeaseRefused)
    assert (held.gpu_id, refused.reasons) == (GPU_0, {GPU_0: held.reason})
    assert "pid 7 (python train.py)" in held.reason
    on_gpus = [number for verb, number in run.attempts.log if verb == "begins" and number != 3]
    assert on_gpus == [1, 0, 2], "it waits in front of those that had not been started"
    assert [run.results[number].gpu_ids for number in range(3)] == [(GPU_1,)] * 3
    assert exit_code(run.state, allow_missing_gpus=False) == ExitCode.GPU_QUARANTINED


def test_a_unit_whose_lease_is_refused_in_a_cancelled_run_is_not_run(tmp_path: Path) -> None:
    meter = FakeMeter({GPU_0: 0}, {GPU_0: (GpuProcess(7, HELD, "python train.py"),)})
    run = ScriptedRun(tmp_path, [1, 1], num_gpus=1, meter=meter, acts=[(told(events.AttemptStarted), cancel)]).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.NOT_RUN] * 2
    assert run.attempts.log == []


def test_an_unkillable_process_keeps_its_cards(tmp_path: Path) -> None:
    run = ScriptedRun(tmp_path, [2, 1], {0: Script(unkillable=("7 D python",))}).run()
    run.assert_sound()
    assert run.outcomes == [Outcome.UNKILLABLE, Outcome.NOT_RUN]
    assert {event.gpu_id for event in run.of(events.GpuQuarantined)} == {GPU_0, GPU_1}


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("ours")])
def test_an_attempt_that_could_not_be_started_has_an_outcome(tmp_path: Path, error: Exception) -> None:
    run = ScriptedRun(tmp_path, [1, 0, 1], {0: Script(num_steps=0, error=error)}, num_gpus=1, cpu_units=1)
    if isinstance(error, OSError):
        run.run().assert_sound()
        assert run.outcomes == [Outcome.SUPERVISOR_LOST, Outcome.PASSED, Outcome.PASSED]
        reason = run.results[0].reason
        assert "could not be started: a disk takes no more: [Errno 28] No space left on device; free some" in reason
        assert run.of(events.GpuQuarantined) == []
    else:
        with pytest.raises(ValueError, match="ours"):
            run.run()


def test_a_bug_in_a_units_task_ends_the_run_and_loses_no_other_result(tmp_path: Path) -> None:
    scripts = {1: Script(num_steps=50, error=RuntimeError("ours")), 2: Script(num_steps=FOREVER)}
    run = ScriptedRun(tmp_path, [0, 1, 1, 1, 0], scripts, cpu_units=1)
    with pytest.raises(RuntimeError, match="ours"):
        run.run()
    run.state.check_sum()
    assert run.outcomes[:4] == [Outcome.PASSED, Outcome.SUPERVISOR_LOST, Outcome.INTERRUPTED, Outcome.NOT_RUN]
    assert run.results[1].reason == "rlharness itself failed: RuntimeError: ours"
    assert "RuntimeError: ours" in run.results[3].reason
    assert run.tasks_left == []
    assert [event.gpu_id for event in run.of(events.GpuQuarantined)] == [GPU_0], "nobody had looked at it"
    assert not run.state.interrupted


def test_a_bug_in_the_loop_itself_ends_every_attempt_and_settles_every_unit(tmp_path: Path) -> None:
    def post_nonsense(dispatcher: Dispatcher) -> None:
        dispatcher.post(events.LeaseReturned(0.0, "test_9.py", ("ID-9",)))

    scripts = dict.fromkeys(range(2), Script(num_steps=FOREVER))
    run = ScriptedRun(tmp_path, [0, 0, 0], scripts, cpu_units=2, acts=[(begun(1), post_nonsense)])
    with pytest.raises(AssertionError, match="gave ID-9 back"):
        run.run()
    run.state.check_sum()
    assert run.outcomes == [Outcome.INTERRUPTED, Outcome.INTERRUPTED, Outcome.NOT_RUN]
    assert [end for end in run.attempts.log if end[0] == "ends"] == [("ends", 0), ("ends", 1)]
    assert run.tasks_left == []


def test_a_bug_in_the_ticker_is_not_silent(tmp_path: Path) -> None:
    no_limit = {"slow_s": None}
    run = ScriptedRun(tmp_path, [0, 0], {0: Script(num_steps=FOREVER)}, cpu_units=1, options=no_limit)
    with pytest.raises(TypeError):
        run.run()
    run.state.check_sum()
    assert run.outcomes == [Outcome.INTERRUPTED, Outcome.NOT_RUN]


def leases_at_most(run: ScriptedRun) -> int:
    """The most GPUs that were out at once, by the record."""
    out: dict[str, str] = {}
    most = 0
    for event in run.kept.events:
        if isinstance(event, events.AttemptStarted):
            assert not out.keys() & set(event.gpu_ids), "a GPU was leased twice"
            out |= dict.fromkeys(event.gpu_ids, event.path)
        elif isinstance(event, events.LeaseReturned):
            for gpu_id in event.gpu_ids:
                assert out.pop(gpu_id) == event.path
        elif isinstance(event, events.GpuQuarantined):
            del out[event.gpu_id]
        most = max(most, len(out))
    return most


scripts = st.builds(
    Script,
    num_steps=st.integers(0, 60),
    grace_steps=st.integers(0, 30),
    unkillable=st.sampled_from([(), (), (), ("7 D python",)]),
    error=st.sampled_from([None, None, None, OSError("no")]),
)
needs = st.one_of(st.integers(0, 4), st.builds(Need, gpus=st.integers(0, 2), exclusive=st.just(True)))


@dataclass(frozen=True)
class Machine:
    """What a random run has, beside its units."""

    num_gpus: int
    cpu_units: int
    maxfail: int
    held: frozenset[int]
    """GPUs whose memory does not come back."""


machines = st.builds(Machine, st.integers(0, 3), st.integers(1, 3), st.integers(0, 3), st.frozensets(st.integers(0, 2)))


@pytest.mark.full
@settings(max_examples=60)
@given(
    units=st.lists(st.tuples(needs, scripts), min_size=1, max_size=7),
    machine=machines,
    cancels=st.lists(st.integers(0, 250), max_size=3),
)
def test_whatever_happens_each_unit_has_one_outcome_and_no_card_is_leased_twice(
    units: list[tuple[int | Need, Script]], machine: Machine, cancels: list[int]
) -> None:
    num_gpus, maxfail = machine.num_gpus, machine.maxfail
    meter = FakeMeter({f"ID-{index}": 0 for index in range(num_gpus)})

    def leak(dispatcher: Dispatcher) -> None:
        meter.used_bytes.update({f"ID-{index}": HELD for index in machine.held if index < num_gpus})

    acts = sorted([(100, leak), *((turn, cancel) for turn in cancels)], key=lambda act: act[0])
    with tempfile.TemporaryDirectory() as directory:
        run = ScriptedRun(
            Path(directory),
            [need for need, _ in units],
            {number: play for number, (_, play) in enumerate(units)},
            num_gpus=num_gpus,
            cpu_units=machine.cpu_units,
            meter=meter,
            acts=[(after(turn), act) for turn, act in acts],
            options={"maxfail": maxfail},
        ).run()
        run.assert_sound()
    assert leases_at_most(run) <= num_gpus
    begun = [number for word, number in run.attempts.log if word == "begins"]
    assert len(begun) == len(set(begun))
    for number, result in run.results.items():
        if result.outcome is Outcome.NOT_RUN:
            assert number not in begun
        if result.outcome is Outcome.PASSED:
            assert run.attempts.log.count(("ends", number)) == 1
    if not cancels and not maxfail:
        wanting = [result for result in run.results.values() if result.outcome is Outcome.NOT_RUN]
        assert all(result.for_want_of_gpus for result in wanting)
