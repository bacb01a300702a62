"""How long `doctor --distributed 2` takes to name the layer of a planted hang, and the whole examination with it.

    python tests/benchmarks/hangs.py

Hosts are network namespaces, so it needs root, iproute2 and iptables; the ranks are torch's, Ray is the real one. NCCL
needs two GPUs (tests/gpu). Exit status 1 where a layer was named wrongly, or later than the target.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.support.networks.host import Host, why_not
from tests.support.networks.situations import OPEN_PORT, black_holed_host, good_host, lossy_host, occupied_host

ROOT = Path(__file__).resolve().parents[2]
TARGET_S = 20.0
ONE_LAYER = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


@dataclass(frozen=True, slots=True)
class Planted:
    """A hang, and the layers that have to be named for it."""

    what: str
    host: Callable[[], AbstractContextManager[Host]]
    settings: dict[str, str]
    layers: tuple[str, ...]


PLANTED = (
    Planted("nothing", good_host, {}, ()),
    Planted("own address black-holed", black_holed_host, {}, ("Ray", "Gloo")),
    Planted("RAY_ADDRESS of a dead cluster", good_host, {"RAY_ADDRESS": "10.77.0.99:6379"}, ("Ray",)),
    Planted("MASTER_ADDR black-holed", black_holed_host, {"MASTER_ADDR": "10.77.0.2", **ONE_LAYER}, ("store",)),
    Planted(
        "MASTER_PORT taken", occupied_host, {"MASTER_ADDR": "localhost", "MASTER_PORT": f"{OPEN_PORT}"}, ("store",)
    ),
    Planted("large packets lost", lossy_host, ONE_LAYER, ("first collective",)),
)


def examine(planted: Planted) -> tuple[dict[str, float], float]:
    """Seconds until each layer was named, and until the end."""
    words = [sys.executable, "-m", "harness", "doctor", "--distributed", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **planted.settings}
    with planted.host() as host:
        began_s = time.monotonic()
        named: dict[str, float] = {}
        with subprocess.Popen(
            host.command(words), env=env, cwd="/tmp", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as doctor:
            assert doctor.stderr is not None
            for line in doctor.stderr:
                layer, _, what = line.removeprefix("rlharness: ").partition(": ")
                if " hung " in what or " failed " in what:
                    named.setdefault(layer, time.monotonic() - began_s)
        return named, time.monotonic() - began_s


def main() -> int:
    """Plant each, print what came of it."""
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    today, load = datetime.now(UTC).date(), os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    print(
        f"{today}, Python {platform.python_version()}, torch {version('torch')}, ray {version('ray')}, "
        f"{platform.system()} {platform.release()}, {cores} cores, load {load:.1f}"
    )
    is_good = True
    for planted in PLANTED:
        named, took_s = examine(planted)
        right = set(named) == set(planted.layers) and all(seconds < TARGET_S for seconds in named.values())
        is_good = is_good and right
        layers = ", ".join(f"{layer} named after {seconds:.1f} s" for layer, seconds in named.items()) or "none named"
        print(f"{planted.what:<30} {layers}; {took_s:.1f} s in all{'' if right else '   WRONG'}")
    print(f"{'PASS' if is_good else 'FAIL'}: each named as planted, within {TARGET_S:g} s")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
