"""The networks that distributed programs meet, each as a context manager that gives the hosts in it.

good_host            one host that reaches itself on all its addresses
black_holed_host     its own address can be bound, and never answers: a bonded VLAN interface in a data centre
lossy_host           one host whose large packets are lost: a bootstrap passes, the first collective hangs
occupied_host        somebody listens at port 29400 of its every address, lets everybody in and says nothing
nameless_host        its name server never answers, and /etc/hosts does not know the host's own name
two_hosts            two interfaces each: over `bad0` they do not hear each other, over `good0` they do
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tests.support.networks.host import SETTING_UP_S, Host, host

OPEN_PORT = 29400
LISTEN = (  # until its standard input is closed
    "import socket, sys\n"
    "opened = socket.create_server(('', int(sys.argv[1])), backlog=64)\n"
    "print('up', flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def good_host() -> Iterator[Host]:
    """One host, `alpha`, at 10.77.0.1 on eth0."""
    with _linked({"alpha": "10.77.0.1", "beta": "10.77.0.2"}) as (alpha, _):
        yield alpha


@contextmanager
def black_holed_host() -> Iterator[Host]:
    """One host, `beta`, whose own address 10.77.0.2 on eth0 swallows what the host itself sends there."""
    with _linked({"alpha": "10.77.0.1", "beta": "10.77.0.2"}) as (_, beta):
        beta.set_up("iptables", "-A", "INPUT", "-i", "lo", "-d", "10.77.0.2", "-j", "DROP")
        yield beta


@contextmanager
def lossy_host() -> Iterator[Host]:
    """`alpha`, which loses packets of over 20,000 bytes to itself, as on a path whose MTU nobody was told."""
    with good_host() as alpha:
        large = ("-p", "tcp", "-m", "length", "--length", "20000:")
        alpha.set_up("iptables", "-A", "INPUT", "-i", "lo", *large, "-j", "DROP")
        yield alpha


@contextmanager
def occupied_host() -> Iterator[Host]:
    """`alpha`, where another program listens at port 29400."""
    with good_host() as alpha:
        pipe = subprocess.PIPE
        command = alpha.command([sys.executable, "-c", LISTEN, str(OPEN_PORT)])
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as listener:
            assert listener.stdout is not None
            if listener.stdout.readline() != b"up\n":
                raise RuntimeError(f"nobody listens at port {OPEN_PORT} of {alpha.name}")
            yield alpha  # leaving closes the listener's standard input, and waits for its end


@contextmanager
def nameless_host() -> Iterator[Host]:
    """`alpha`, which asks a name server for its own name; what it sends there vanishes behind `beta`."""
    with _linked({"alpha": "10.77.0.1", "beta": "10.77.0.2"}) as (alpha, beta):
        beta.set_up("iptables", "-A", "FORWARD", "-j", "DROP")
        alpha.set_up("ip", "route", "add", "default", "via", "10.77.0.2")
        alpha.write("hosts", "127.0.0.1 localhost\n")
        alpha.write("resolv.conf", "nameserver 10.255.255.53\n")
        yield alpha


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """`alpha` and `beta`, whose names resolve to addresses on bad0 (10.77.0.0/24); good0 is 10.78.0.0/24."""
    with _linked({"alpha": "10.77.0.1", "beta": "10.77.0.2"}, name="bad0") as (alpha, beta):
        _link(alpha, beta, "good0", ("10.78.0.1", "10.78.0.2"))
        for one in (alpha, beta):
            one.set_up("iptables", "-A", "INPUT", "-i", "bad0", "-j", "DROP")
        yield alpha, beta


@contextmanager
def _linked(addresses: Mapping[str, str], name: str = "eth0") -> Iterator[tuple[Host, Host]]:
    """Two hosts that know each other, and a link between them."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(host(one, addresses)) for one in addresses)
        _link(first, second, name, tuple(addresses.values()))
        yield first, second


def _link(first: Host, second: Host, name: str, addresses: tuple[str, ...]) -> None:
    ends = ["name", name, "netns", str(first.pid), "type", "veth", "peer", "name", name, "netns", str(second.pid)]
    subprocess.run(["ip", "link", "add", *ends], check=True, capture_output=True, text=True, timeout=SETTING_UP_S)
    for one, address in zip((first, second), addresses, strict=True):
        one.set_up("ip", "link", "set", name, "addrgenmode", "none")  # no IPv6 of the link, which is ready only later
        one.set_up("ip", "addr", "add", f"{address}/24", "dev", name)
        one.set_up("ip", "link", "set", name, "up")
    for one in (first, second):
        _wait_until_running(one, name)


def _wait_until_running(one: Host, name: str) -> None:
    """The kernel says a little later that something is plugged in; until then NCCL passes the interface over."""
    give_up_s = time.monotonic() + SETTING_UP_S
    while " state UP " not in one.set_up("ip", "-oneline", "link", "show", name):
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"{name} of {one.name} does not come up")
