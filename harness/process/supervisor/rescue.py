"""End the tree of a supervisor that was killed, from the runner."""

import contextlib
import os
import select
import signal

from harness.process.clock import SystemClock
from harness.process.supervisor import process_tree
from harness.process.supervisor.containment import group_members, kill_group, remove_group
from harness.process.supervisor.process_tree import Process

REAP_ROUND_S = 0.002
STOPPED = "T"


def rescue_round(cgroup: str, marker: str, since_ticks: int, spare_pids: frozenset[int]) -> list[Process]:
    """Kill once what a lost supervisor left; returns who still lived before this round, so [] is the proof.

    The runner is a subreaper, so orphans have become its children: each child that started no earlier than the
    attempt (`since_ticks`) and is not in `spare_pids` (living supervisors) is one, with all its descendants.
    Members of the attempt's control group (`cgroup`, "" for none) and processes that carry `marker` ("" for none) are
    taken too.
    """
    own_pid = os.getpid()
    if cgroup:
        kill_group(cgroup)
    spared = {own_pid, *spare_pids, *(process.pid for process in process_tree.descendants(*spare_pids))}
    orphans = [p for p in process_tree.children(own_pid) if p.start_ticks >= since_ticks and p.pid not in spared]
    below = process_tree.descendants(*(process.pid for process in orphans))
    bearers = process_tree.bearing(marker) if marker else []
    held = [*group_members(cgroup), *bearers] if cgroup else bearers
    found = {process.pid: process for process in [*orphans, *below, *held] if process.pid not in spared}
    for process in found.values():
        process_tree.send_signal(process, signal.SIGKILL)
        if process.parent_pid == own_pid:
            with contextlib.suppress(ChildProcessError):  # reaped meanwhile
                os.waitpid(process.pid, os.WNOHANG)
    living = [process for process in found.values() if not process.is_zombie]
    if cgroup and not living:
        remove_group(cgroup)
    return living


def kill_bearing(marker: str, spare: int = 0) -> list[Process]:
    """Kill once the processes that carry `marker`, and their descendants; returns who lived before: [] is the proof.

    `spare` is the number of one that is left alone.
    """
    bearers = [process for process in process_tree.bearing(marker) if process.pid != spare]
    below = process_tree.descendants(*(process.pid for process in bearers)) if bearers else []
    found = [process for process in (*bearers, *below) if process.pid != os.getpid()]
    for process in found:
        process_tree.send_signal(process, signal.SIGKILL)
        if process.parent_pid == os.getpid():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
    return [process for process in found if not process.is_zombie]


def keep_going(pid: int, since_ticks: int, *, is_overdue: bool) -> None:
    """Continue a supervisor that a test has stopped (SIGSTOP), and kill one that is overdue: it is then a lost one."""
    supervisor = process_tree.read_process(pid)
    if supervisor is None or supervisor.start_ticks != since_ticks:
        return
    if is_overdue:
        process_tree.send_signal(supervisor, signal.SIGKILL)
    elif supervisor.state == STOPPED:
        process_tree.send_signal(supervisor, signal.SIGCONT)


def reap(pid: int, patience_s: float = 0.0) -> bool:
    """Reap a child that is ending, and kill it once `patience_s` have passed; whether it ended in order."""
    clock = SystemClock()
    until_s = clock.monotonic_s() + patience_s
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if clock.monotonic_s() > until_s and (child := process_tree.read_process(pid)):
            process_tree.send_signal(child, signal.SIGKILL)
        select.select([], [], [], REAP_ROUND_S)
    return ended[1] == 0
