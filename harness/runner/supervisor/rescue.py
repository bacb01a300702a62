"""What the runner does itself when a supervisor was killed: end the tree that it had held."""

import os
import signal

from harness.runner.supervisor import process_tree
from harness.runner.supervisor.process_tree import Process


def rescue_round(cgroup: str, marker: str, spare_pids: frozenset[int]) -> list[Process]:
    """Kill once what a lost supervisor left; returns who still lived before this round, so [] is the proof.

    The runner is a subreaper, so orphans have become its children: every child that is not in `spare_pids`
    (living supervisors) is one, with all its descendants. `cgroup` is the attempt's directory or "". Processes
    that carry `marker` in their environment are taken too.
    """
    if cgroup and os.path.isdir(cgroup):
        with open(os.path.join(cgroup, "cgroup.kill"), "w", encoding="ascii") as file:
            file.write("1")
    own_pid = os.getpid()
    found: dict[int, Process] = {}
    spared = set(spare_pids)
    for pid in spare_pids:
        spared |= {process.pid for process in process_tree.descendants(pid)}
    for process in process_tree.descendants(own_pid) + process_tree.bearing(marker):
        if process.pid not in spared and process.pid != own_pid:
            found[process.pid] = process
    for process in found.values():
        process_tree.send_signal(process, signal.SIGKILL)
        if process.parent_pid == own_pid:
            try:
                os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                pass  # reaped meanwhile
    if not found and cgroup and os.path.isdir(cgroup):
        os.rmdir(cgroup)
    return [process for process in found.values() if not process.is_zombie]
