"""One pretended host: a network, a host name, an /etc/hosts and processes of its own. Needs root.

The namespaces have no name on the machine: they live as long as the first process in them, a `cat` that reads a pipe
of ours. When this process ends, however it ends, the pipe closes, `cat` ends, and as process 1 of its PID namespace
takes every other process with it; then the kernel removes interfaces, firewall rules and the host's own directory.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROGRAMS = ("ip", "iptables", "unshare", "nsenter", "mount", "mountpoint", "cat")
OWN = Path("/media")
HOLD = f"mount -t tmpfs tmpfs {OWN} && echo up && exec cat"
WRITE = f'cat >"{OWN}/$1" && {{ mountpoint -q "/etc/$1" || mount --bind "{OWN}/$1" "/etc/$1"; }}'
SET_NAME = "import socket, sys; socket.sethostname(sys.argv[1])"
SETTING_UP_S = 20.0


@dataclass(frozen=True, slots=True)
class Done:
    """How a program on a host ended."""

    exit_code: int | None
    """None where it was ended because its time was up."""
    output: str
    """Standard output and standard error, as they came."""
    took_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """A pretended host that is up."""

    name: str
    pid: int
    """Of its first process, as seen from here."""
    directory: Path = OWN
    """Of its own, in memory, seen by nobody else. All other directories are the machine's."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """What to start here, so that `argv` runs there."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--mount", "--pid", "--", *argv]

    def run(self, *argv: str, timeout_s: float, env: Mapping[str, str] | None = None) -> Done:
        """Run a program there, to its end or for `timeout_s` seconds; `env` is its whole environment."""
        begun_s = time.monotonic()
        with tempfile.TemporaryFile() as output:
            program = subprocess.Popen(
                self.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
            )
            try:
                exit_code: int | None = program.wait(timeout_s)
            except subprocess.TimeoutExpired:
                exit_code = None
                self.end_all()
                # nsenter ends with its child. Killed before it has reaped it, it leaves a zombie to whoever adopts
                # orphans here, and the host's PID namespace could not end before that one is reaped.
                program.wait(SETTING_UP_S)
            output.seek(0)
            text = output.read().decode("utf-8", errors="replace")
            return Done(exit_code, text, time.monotonic() - begun_s)

    def write(self, name: str, text: str) -> None:
        """Make `text` the host's own /etc/`name`, in the place of the machine's."""
        command = self.command(["sh", "-c", WRITE, "sh", name])
        told = text.encode("ascii")
        subprocess.run(command, input=told, check=True, capture_output=True, timeout=SETTING_UP_S)

    def end_all(self) -> None:
        """End every process there but the first."""
        ending = self.command(["sh", "-c", "kill -KILL -1"])  # in its PID namespace; process 1 is spared
        subprocess.run(ending, check=False, capture_output=True, timeout=SETTING_UP_S)

    def set_up(self, *argv: str) -> str:
        """What a program of this machine prints in the host's network; CalledProcessError where it fails."""
        command = ["nsenter", "--target", str(self.pid), "--net", "--", *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=SETTING_UP_S).stdout


@contextmanager
def host(name: str, hosts: Mapping[str, str]) -> Iterator[Host]:
    """A host called `name` with loopback alone, that knows the `hosts` (address by name) and nobody else.

    RuntimeError, with what the system says, where this machine does not allow namespaces.
    """
    known = "".join(f"{address} {other}\n" for other, address in {"localhost": "127.0.0.1", **hosts}.items())
    holder = subprocess.Popen(
        ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert holder.stdin is not None and holder.stdout is not None and holder.stderr is not None
    try:
        if holder.stdout.readline() != b"up\n":
            raise RuntimeError(holder.stderr.read().decode("utf-8", errors="replace"))
        made = Host(name, _only_child(holder.pid))
        made.set_up("ip", "link", "set", "lo", "up")
        made.write("hosts", known)
        naming = made.command([sys.executable, "-c", SET_NAME, name])
        subprocess.run(naming, check=True, capture_output=True, timeout=SETTING_UP_S)
        yield made
    finally:
        holder.stdin.close()
        holder.wait(SETTING_UP_S)
        holder.stdout.close()
        holder.stderr.close()


def _only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return int(child)


@cache
def why_not() -> str:
    """Why no host can be made on this machine; empty where one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian's packages iproute2, iptables, util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with host("probe", {}) as probe:
            probe.set_up("iptables", "-A", "INPUT", "-i", "lo", "-d", "192.0.2.1", "-j", "DROP")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        told = getattr(error, "stderr", None) or error
        return f"this machine does not allow network namespaces: {' '.join(str(told).split())}"
    return ""
