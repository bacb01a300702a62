"""Starting the agents of a cluster: on this machine, by the user, or by Ray.

run ─▶ open_cluster: listen ─▶ start agents, or say how ─▶ wait until all have joined ─▶ Cluster ─▶ close, reap
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import NetworkError, UsageError
from harness.core.malformed import MALFORMED
from harness.core.text import one_line
from harness.machine.network.interfaces import read_network
from harness.machine.network.rendezvous import meeting_places
from harness.process.daemon_thread import in_daemon_thread
from harness.process.supervisor.fork_server import end_process
from harness.runner.cluster.channel import new_key
from harness.runner.cluster.nodes import Cluster
from harness.runner.cluster.shipping import pack_sources
from harness.runner.cluster_address import Boot, ClusterAddress
from harness.runner.options import RunOptions

KEY = "RLHARNESS_CLUSTER_KEY"
"""Variable with the key of the run, for agents that others start; a run takes it from there too."""
MIN_KEY_CHARS = 16
JOIN_S = 300.0
"""For agents that the run or Ray has started."""
DIAL_IN_S = 900.0
"""For agents that others start, who may have to wait for their nodes."""
NAMES_S = 1.0
CONNECT_S = 10.0
"""For the address of a Ray cluster to answer."""
END_S = 30.0
"""For an agent to end what it runs, once the run is over."""
BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from harness.cli.main import main; sys.exit(main())"
RAY_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from harness.runner.cluster.ray_boot import main; main()"


@dataclass(slots=True)
class Booted:
    """Processes of this machine that hold agents."""

    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def pids(self) -> frozenset[int]:
        """Their numbers."""
        return frozenset(process.pid for process in self.processes)

    def why_ended(self) -> str:
        """Return why not all nodes can join; empty while all processes live."""
        ended = [process for process in self.processes if process.poll() is not None]
        return f"an agent that the run started has exited with {ended[0].returncode}" if ended else ""

    def start(self, arguments: Sequence[str], environ: Mapping[str, str], key: str) -> None:
        """Start a process of this package that reads the key from its standard input."""
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", BOOT, str(Path(__file__).parents[3]), *arguments],
            env={name: value for name, value in environ.items() if name != KEY},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run, which ends its nodes in order
        )
        self.processes.append(process)
        assert process.stdin is not None
        process.stdin.write(f"{key}\n".encode())
        process.stdin.close()

    async def start_by_ray(self, ray_address: str, port: int, environ: Mapping[str, str], key: str) -> int:
        """Have Ray start an agent on each node of its cluster; the number of nodes. NetworkError where it cannot."""
        await check_listens(ray_address)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", RAY_BOOT, str(Path(__file__).parents[3])],
            env={name: value for name, value in environ.items() if name != KEY},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        order = {"ray_address": ray_address, "port": port, "key": key, "end_s": END_S / 2}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        try:
            line = await in_daemon_thread(process.stdout.readline, limit_s=JOIN_S)
            said = json.loads(line or b'{"error": "the process that joins Ray has ended; is ray installed?"}')
            num_nodes = 0 if "error" in said else int(said["nodes"])
        except TimeoutError:
            said = {"error": f"no answer within {JOIN_S:g} s"}
        except MALFORMED:
            said = {"error": f"its process answered {line[:100]!r}"}
        if "error" in said:
            raise NetworkError(
                f"--cluster {ray_address}: {said['error']}",
                legal="the address of a Ray cluster that runs, with the version of Ray that is installed here",
                remedy="ray status --address ADDRESS; or start agents yourself, with --cluster listen:N",
            )
        return num_nodes

    def end(self) -> None:
        """Wait for the processes to end; kill what does not."""
        for process in self.processes:
            if process.stdin is not None:
                process.stdin.close()
            end_process(process, END_S)
            if process.stdout is not None:
                process.stdout.close()


@asynccontextmanager
async def open_cluster(options: RunOptions, address: ClusterAddress) -> AsyncIterator[Cluster]:
    """Start the agents and wait until all nodes have joined; end them in the end. NetworkError, UsageError."""
    key = _key(options.invocation.environ)
    archive = pack_sources(options.root, options.invocation.cwd) if options.ships_sources else ()
    cluster, booted = Cluster(options, key, archive), Booted()
    try:
        port = await cluster.listen(address.host, address.port)
        if address.boot is Boot.LOCAL:
            for _ in range(address.num_nodes):
                booted.start(("agent", f"127.0.0.1:{port}", "--key-file", "-"), options.invocation.environ, key)
            await cluster.wait_for(address.num_nodes, JOIN_S, booted.why_ended)
        elif address.boot is Boot.RAY:
            num_nodes = await booted.start_by_ray(address.ray_address, port, options.invocation.environ, key)
            await cluster.wait_for(num_nodes, JOIN_S, booted.why_ended)
        else:
            await _say_how(address, port, key, options)
            await cluster.wait_for(address.num_nodes, DIAL_IN_S)
        cluster.boot_pids = booted.pids
        yield cluster
    finally:
        await cluster.close()
        booted.end()


def _key(environ: Mapping[str, str]) -> str:
    """Return the key of a run: the user's, or a new one. UsageError for one that is too short."""
    given = environ.get(KEY, "")
    if given and (len(given) < MIN_KEY_CHARS or not given.isascii() or not given.isprintable()):
        raise UsageError(
            f"{KEY} has {len(given)} characters",
            legal=f"{MIN_KEY_CHARS} printable ASCII characters or more",
            remedy=f"export {KEY}=$(openssl rand -hex 16)",
        )
    return given or new_key()


async def _say_how(address: ClusterAddress, port: int, key: str, options: RunOptions) -> None:
    """Say how an agent joins; the key only where the user has not chosen it."""
    note: Callable[[str], None] = options.invocation.note
    places = meeting_places(await read_network((), limit_s=NAMES_S), port)
    place = f"{address.host}:{port}" if address.host else places[0]
    given = "" if KEY in options.invocation.environ else f"{KEY}={key} "
    beside = f" (this machine is also {', '.join(places[1:])})" if not address.host and places[1:] else ""
    note(one_line(f"waiting for {address.num_nodes} nodes, on each: {given}rlharness agent {place}{beside}", 500))


async def check_listens(ray_address: str) -> None:
    """Raise NetworkError if nothing listens at HOST:PORT: Ray itself would wait for minutes."""
    host, separator, port = ray_address.rpartition(":")
    if not separator or "://" in ray_address:
        return
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except (OSError, ValueError, OverflowError) as error:  # TimeoutError is an OSError
        raise NetworkError(
            f"--cluster {ray_address}: {str(error) or 'no answer'}",
            legal="the address of a Ray cluster that runs, with the version of Ray that is installed here",
            remedy="ray status --address ADDRESS; or start agents yourself, with --cluster listen:N",
        ) from None
