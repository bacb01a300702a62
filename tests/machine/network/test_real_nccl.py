"""The real NCCL on pretended hosts: it picks what `rules` says, and where it listens nobody is heard, or everybody.

It needs no GPU: NCCL chooses its interface, and opens the port at which ranks meet, when it is asked for a unique id.
The library comes with torch for CUDA, or alone: pip install --no-deps nvidia-nccl-cu12.
"""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.machine.network.pretended import environment
from tests.machine.network.test_real_libraries import OUR_PICKS
from tests.support.networks.host import Host, why_not
from tests.support.networks.situations import black_holed_host, two_hosts

LONG_S = 60.0
MEETS = """
import ctypes, json, socket, struct, sys
nccl = ctypes.CDLL(sys.argv[1])
unique_id = (ctypes.c_ubyte * 128)()
if nccl.ncclGetUniqueId(ctypes.byref(unique_id)) == 0:
    magic, family, port = struct.unpack_from("<QH", bytes(unique_id)) + struct.unpack_from(">H", bytes(unique_id), 10)
    assert family == socket.AF_INET, family
    address = socket.inet_ntoa(bytes(unique_id[12:16]))
    try:
        socket.create_connection((address, port), timeout=3).close()
        met = "met"
    except TimeoutError:
        met = "no answer"
else:
    address, met = "", "refused"
with open(sys.argv[2], "w") as answer:
    json.dump([address, met], answer)
"""


def libnccl() -> str:
    """The path of the library in this environment; empty where there is none."""
    found = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    places = list(found.submodule_search_locations or ()) if found else []
    return next((str(path) for place in places if (path := Path(place) / "lib" / "libnccl.so.2").exists()), "")


@pytest.fixture(scope="module", autouse=True)
def _nccl_and_namespaces() -> None:
    if reason := why_not():
        pytest.skip(f"no pretended hosts: {reason}")
    if not libnccl():
        pytest.skip("no libnccl.so.2 in this environment: pip install --no-deps nvidia-nccl-cu12")


def meets(one: Host, **settings: str) -> tuple[str, str, str]:
    """The interface NCCL says it uses, the address in its unique id, and what came of connecting to it there."""
    env = environment({"NCCL_DEBUG": "INFO", **settings})
    with TemporaryDirectory() as directory:
        answer = Path(directory) / "answer.json"  # a file: NCCL's threads write into the middle of printed lines
        done = one.run(sys.executable, "-c", MEETS, libnccl(), str(answer), timeout_s=LONG_S, env=env)
        assert done.exit_code == 0, done.output
        address, met = json.loads(answer.read_text())
    used = re.search(r"Bootstrap\s?: Using (\S+?):", done.output)
    return (used[1] if used else "", address, met)


def our_pick(one: Host, **settings: str) -> str:
    """The address our rules name."""
    done = one.run(sys.executable, "-c", OUR_PICKS, timeout_s=LONG_S, env=environment(settings))
    assert done.exit_code == 0, done.output
    return str(json.loads(done.output.splitlines()[-1])["NCCL"])


@pytest.mark.parametrize(
    "chosen", ["", "good0", "good", "=good0", "=good", "^bad", "^bad0,good0", "^=bad0", "lo", "x", "x,good", "bad,good"]
)
def test_it_picks_what_we_say(chosen: str) -> None:
    settings = {"NCCL_SOCKET_IFNAME": chosen} if chosen else {}
    with two_hosts() as (alpha, _):
        _, address, met = meets(alpha, **settings)
        assert address == our_pick(alpha, **settings)
        assert met == ("met" if address else "refused"), "a host reaches itself here, whatever it uses"


@pytest.mark.parametrize("name", ["docker0", "ib0", "virbr0", "aardvark0", "lowland0"])
def test_names_that_nccl_prefers_or_avoids(name: str) -> None:
    with two_hosts() as (alpha, _):
        for argv in (
            ("link", "add", name, "type", "veth", "peer", "name", "peer0"),
            ("link", "set", name, "addrgenmode", "none"),  # no address of the link, which could not be bound yet
            ("link", "set", "peer0", "addrgenmode", "none"),
            ("addr", "add", "10.79.0.1/24", "dev", name),
            ("link", "set", "peer0", "up"),
            ("link", "set", name, "up"),
        ):
            alpha.set_up("ip", *argv)
        assert meets(alpha)[1] == our_pick(alpha)
        for own in ("bad0", "good0"):
            alpha.set_up("ip", "link", "set", own, "down")
        assert meets(alpha)[1] == our_pick(alpha)


def test_nobody_is_heard_on_a_black_holed_host_and_everybody_with_the_pin() -> None:
    with black_holed_host() as beta:
        assert meets(beta) == ("eth0", "10.77.0.2", "no answer")
        assert meets(beta, NCCL_SOCKET_IFNAME="lo") == ("lo", "127.0.0.1", "met")
