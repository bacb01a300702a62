"""One attempt from the runner's side, with real processes, by each means of holding them."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness.process.supervisor.containment import BACKENDS
from harness.process.supervisor_client import ProcessEnd, ProcessSpec, Supervisors, probe_backends

MakeSpec = Callable[..., ProcessSpec]
Eventually = Callable[[Callable[[], object], str], Awaitable[None]]

SLEEP = "import time; time.sleep(60)"
LOG_SIGNALS = """
import signal, time
def note(number, frame):
    print(signal.Signals(number).name, time.monotonic(), flush=True)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, note)
print("ready", time.monotonic(), flush=True)
while True:
    time.sleep(60)
"""
REPORT = """
import os, time
with open("report.jsonl", "ab", 0) as report:
    report.write({lines!r}.encode())
time.sleep(60)
"""


by_default_in_the_plainest = pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=() if name == "subreaper" else pytest.mark.full) for name in BACKENDS],
    indirect=True,
    scope="module",
)


def output(spec: ProcessSpec) -> str:
    return Path(spec.directory, "output.log").read_text()


def run(supervisors: Supervisors, spec: ProcessSpec) -> ProcessEnd:
    return asyncio.run(supervisors.run(spec))


def run_all(supervisors: Supervisors, *specs: ProcessSpec) -> list[ProcessEnd]:
    async def together() -> list[ProcessEnd]:
        return await asyncio.gather(*map(supervisors.run, specs))

    return asyncio.run(together())


def test_a_leader_that_ends_by_itself(supervisors: Supervisors, spec: MakeSpec) -> None:
    one = spec("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    end = run(supervisors, one)
    assert (end.exit_code, end.signal, end.reason, end.left_behind, end.unkillable) == (3, None, "", (), ())
    assert sorted(output(one).split()) == ["err", "out"]
    assert 0 < end.duration_s < 10
    assert sorted(os.listdir(one.directory)) == ["output.log"], "an empty supervisor.log is removed"


def test_the_leader_gets_exactly_what_it_was_given(supervisors: Supervisors, spec: MakeSpec, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; print(os.getcwd()); print(sorted(os.environ)); print(sys.stdin.read() == '');"
        "print(os.getsid(0) == os.getpid()); print(sorted(os.listdir('/proc/self/fd'))[:-1]);"
        "print([s.name for s in (2, 15, 1, 17) if signal.getsignal(s) is signal.SIG_IGN]);"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )
    one = spec(program, cwd=str(tmp_path))
    run(supervisors, one)
    names = sorted(one.env)
    assert output(one).splitlines() == [str(tmp_path), str(names), "True", "True", "['0', '1', '2']", "[]", "set()"]


def test_a_leader_that_cannot_start_says_why(supervisors: Supervisors, spec: MakeSpec) -> None:
    specs = [spec(("/nonexistent/python",)), spec("", cwd="/nonexistent")]
    for one, end in zip(specs, run_all(supervisors, *specs), strict=True):
        assert (end.exit_code, end.reason) == (127, "")
        assert "No such file or directory: '/nonexistent" in output(one)


@pytest.mark.full
@by_default_in_the_plainest
def test_the_order_is_sigint_then_sigterm_then_sigkill(supervisors: Supervisors, spec: MakeSpec) -> None:
    reasons: list[str] = []
    one = spec(LOG_SIGNALS, timeout_s=0.5, grace_s=0.8)
    end = asyncio.run(supervisors.run(one, reasons.append))
    assert (end.exit_code, end.signal, end.reason) == (None, signal.SIGKILL, "timeout")
    assert reasons == ["timeout"]
    lines = [line.split() for line in output(one).splitlines()]
    assert [word for word, _ in lines] == ["ready", "SIGINT", "SIGTERM"]
    assert float(lines[2][1]) - float(lines[1][1]) > 0.3, "half the grace lies between them"
    assert "== process" in Path(one.directory, "stacks.txt").read_text()


@by_default_in_the_plainest
def test_a_leader_that_heeds_sigint_ends_at_once(supervisors: Supervisors, spec: MakeSpec) -> None:
    report_then_exit = "import sys, time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('wrote'); sys.exit(2)"
    one = spec(report_then_exit, timeout_s=0.5, grace_s=30.0)
    end = run(supervisors, one)
    assert (end.exit_code, end.signal, end.reason, output(one)) == (2, None, "timeout", "wrote\n")
    assert end.duration_s < 10


@pytest.mark.full
@by_default_in_the_plainest
def test_limits_follow_the_report(supervisors: Supervisors, spec: MakeSpec) -> None:
    garbage = '["start"]\n{"k":"start","timeout_s":"x"}\n"start" {\n["start",' + "[" * 5000 + "\n"
    cases: list[tuple[str, dict[str, float], str]] = [
        ("", {"startup_timeout_s": 0.5}, "collect_timeout"),
        ('{"k":"collected"}\n', {"startup_timeout_s": 0.5, "timeout_s": 0.8}, "timeout"),
        ('{"k":"collected"}\n{"k":"start","id":"a","timeout_s":0.05}\n', {}, "test_timeout"),
        ('{"k":"start","timeout_s":0.05}\n{"k":"end"}\n', {"timeout_s": 1.5}, "timeout"),
        ('{"k":"start","timeout_s":0.05}', {"timeout_s": 1.5}, "timeout"),  # torn: its newline is not there yet
        (garbage, {"timeout_s": 1.0}, "timeout"),
    ]
    ends = run_all(supervisors, *(spec(REPORT.format(lines=lines), **limits) for lines, limits, _ in cases))
    assert [end.reason for end in ends] == [reason for _, _, reason in cases]
    assert {end.signal for end in ends} == {signal.SIGINT}


def test_stacks_that_cannot_be_written_keep_nobody_alive(supervisors: Supervisors, spec: MakeSpec) -> None:
    one = spec(SLEEP, timeout_s=0.3)
    os.symlink("/dev/full", Path(one.directory, "stacks.txt"))
    end = run(supervisors, one)
    assert (end.reason, end.signal) == ("timeout", signal.SIGINT)
    complaint = Path(one.directory, "supervisor.log").read_text()
    assert "stacks.txt: [Errno 22] it is a symbolic link, not a regular file" in complaint


@pytest.mark.full
def test_orders_are_heeded(supervisors: Supervisors, spec: MakeSpec, eventually: Eventually) -> None:
    cancelled, killed = spec(LOG_SIGNALS), spec(LOG_SIGNALS)

    async def scenario() -> list[ProcessEnd]:
        attempts = asyncio.gather(supervisors.run(cancelled), supervisors.run(killed))
        for one in (cancelled, killed):
            log = Path(one.directory, "output.log")
            await eventually(lambda log=log: log.exists() and "ready" in log.read_text(), "the leader is ready")  # type: ignore[misc]
        supervisors.cancel(cancelled.marker)
        supervisors.kill(killed.marker)
        return list(await attempts)

    ends = asyncio.run(scenario())
    assert [(end.reason, end.signal) for end in ends] == [("cancelled", 9), ("killed", 9)]
    assert [line.split()[0] for line in output(cancelled).splitlines()] == ["ready", "SIGINT", "SIGTERM"]
    assert [line.split()[0] for line in output(killed).splitlines()] == ["ready"]
    assert not Path(cancelled.directory, "stacks.txt").exists(), "asked for from outside: nothing hangs"


def test_the_probe_takes_the_strongest(refusals: dict[str, str]) -> None:
    allowed = [backend for backend in BACKENDS if not refusals[backend]]
    backends = probe_backends()
    assert backends.chosen == allowed[0]
    assert set(backends.refused) == set(BACKENDS[: BACKENDS.index(allowed[0])]), (
        "the stronger ones, each with its reason"
    )
    assert all(backends.refused.values())


@pytest.mark.full
def test_no_attempt_leaves_a_file_open(supervisors: Supervisors, spec: MakeSpec) -> None:
    async def scenario() -> list[ProcessEnd]:
        await supervisors.run(spec(("/bin/true",)))
        before = os.listdir("/proc/self/fd")
        ends = [await supervisors.run(spec(("/bin/true",))) for _ in range(20)]
        assert len(os.listdir("/proc/self/fd")) == len(before)
        return ends

    assert {(end.exit_code, end.reason) for end in asyncio.run(scenario())} == {(0, "")}
