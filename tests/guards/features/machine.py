"""Features on a machine with GPUs, by a pretended NVIDIA driver: markers, fixtures, and variables of a test."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.guards.features.feature import Feature, Run, Seen, edited, plain_pytest, with_env
from tests.guards.features.planning import scheduled
from tests.guards.features.running import unit
from tests.guards.guard import ROOT
from tests.support.nvml_stub.build import Process, StubGpu, build, machine_of

_STATE = """\
import json, os
from pathlib import Path
import pytest

@pytest.mark.gpus(1, min_capability=9.0)
def test_state(gpu_ids, free_port):
    found = {"env": dict(os.environ), "gpu_ids": gpu_ids, "free_port": free_port}
    Path("state.json").write_text(json.dumps(found))
"""
_NEEDS = "import pytest\n@pytest.mark.gpus({})\ndef test_needs(): pass\n"
_LIMITED = """\
import time
import pytest

@pytest.mark.timeout(8)
def test_limited(): time.sleep(40)
"""
_TOGETHER = """\
import os
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range(8))
def test_others(number): pass

@pytest.mark.together("pair")
def test_first(): Path("first.pid").write_text(str(os.getpid()))

@pytest.mark.parametrize("number", range(8))
def test_more(number): pass

@pytest.mark.together("pair")
def test_last(): Path("last.pid").write_text(str(os.getpid()))
"""
_STUB = {"LD_LIBRARY_PATH": "{at}", "NVML_STUB_FILE": "{at}/machine.txt"}
_DEBUGGER = """\
from pathlib import Path

def listen(address): Path("debugger.txt").write_text(f"{address[1]}")
def wait_for_client(): Path("waited.txt").touch()
"""
"""Stands for debugpy, which need not be installed."""


def _pretend(*gpus: StubGpu) -> Callable[[Path], None]:
    """Return a function that builds the driver; no other run has GPUs of these UUIDs, and so none leases them."""

    def make(at: Path) -> None:
        build(at)
        machine = machine_of(*gpus)
        for gpu in machine.gpus:
            gpu.uuid += hashlib.sha256(bytes(at)).hexdigest()[:16]
        machine.write(at / "machine.txt")

    return make


def _debugging_conftest() -> str:
    """Return the conftest.py that the page about debugging shows."""
    page = (ROOT / "harness/runner/DEBUGGING.md").read_text("utf-8")
    return page.partition("<!-- file: conftest.py -->\n```python\n")[2].partition("```")[0]


STUB = Run(
    name="gpus",
    is_quick=True,
    command=("run", "tests", "--gpus=auto", "--device-ids=number", "--json", "--", "-p", "no:timeout"),
    files={
        "tests/test_state.py": _STATE,
        "tests/test_new.py": _NEEDS.format("1, min_capability=9.5"),
        "tests/test_big.py": _NEEDS.format("1, memory_gb=900"),
        "tests/test_model.py": _NEEDS.format("1, model='Unknown'"),
        "tests/test_limited.py": _LIMITED,
        "conftest.py": _debugging_conftest(),
        "debugpy.py": _DEBUGGER,
    },
    env={**_STUB, "RAY_ADDRESS": "nowhere:1", "RAY_TMPDIR": "/nowhere", "DEBUG_PORT": "5678"},
    prepare=_pretend(
        StubGpu(capability=(8, 0), model="NVIDIA Old"), StubGpu(model="NVIDIA New"), StubGpu(model="NVIDIA New")
    ),
    package="cc",
)
BUSY = StubGpu(used_mb=5_000, processes=[Process(1, 5_000)])
_ENV = "import json, os\nfrom pathlib import Path\nimport pytest\n@pytest.mark.gpus(1)\ndef test_env(): "
AS_IS = Run(
    name="gpus-as-is",
    command=("run", "tests", "--gpus=as-is:0", "--json"),
    files={"tests/test_env.py": f"{_ENV}Path('state.json').write_text(json.dumps({{'env': dict(os.environ)}}))\n"},
    config={"device-ids": '"number"'},
    env=_STUB,
    prepare=_pretend(BUSY),
    package="cc",
)
WAIT = Run(
    name="gpus-wait",
    command=("run", "tests", "--gpus=1", "--wait=3"),
    files={"tests/test_needs.py": _NEEDS.format("1")},
    env=_STUB,
    prepare=_pretend(BUSY),
    package="cc",
)
WAIT_KEY = replace(WAIT, name="gpus-wait-key", command=("run", "tests", "--gpus=1"), config={"wait": "3"})
PARTS = Run(
    name="marker-together",
    command=("run", "tests", "--gpus=sim:4", "--split", "--json"),
    files={
        "tests/test_parts.py": _TOGETHER.replace("import pytest\n", "import pytest\npytestmark = pytest.mark.gpus(1)\n")
    },
)
PLAN = Run(
    name="marker-plan",
    is_quick=True,
    command=("plan", "tests", "--gpus=sim:2", "--json"),
    files={
        "tests/test_two.py": _NEEDS.format("2"),
        "tests/test_alone.py": _NEEDS.format("1, exclusive=True"),
        "tests/test_shared.py": _NEEDS.format("1, memory_gb=20, shared=True"),
        "tests/test_shared2.py": _NEEDS.format("1, memory_gb=21, shared=True"),
    },
)
RANKS = Run(
    name="fixtures",
    command=("run", "tests", "--gpus=none", "--timeout=200", "--json"),
    files={
        "tests/conftest.py": "pytest_plugins = ['harness.fixtures']\n",
        "conftest.py": "",
        "ranks.py": "import os\ndef total(value): return value + int(os.environ['RANK'])\n",
        "tests/test_ranks.py": (
            "import sys\nsys.path.insert(0, '.')\nfrom ranks import total\n"
            "def test_ranks(distributed): assert distributed(2).run(total, 10) == [10, 11]\n"
        ),
        "tests/test_ray.py": (
            "def test_ray(ray_cluster):\n    import ray\n    ray_cluster(2, pretend_gpus=8)\n"
            "    assert ray.cluster_resources()['GPU'] == 16\n"
        ),
    },
    package="ray",
)


def _marker(name: str, text: str, sees: str, holds: Any, run: Run = STUB) -> Feature:
    return Feature(f"marker {name}", run, sees, holds, edited(text, ""))


def _variable(name: str, sees: str, holds: Callable[[dict[str, str]], object]) -> Feature:
    """A variable that a run gives a test; plain pytest gives none."""
    return Feature(f"variable {name}", STUB, sees, lambda s: holds(s.load("state.json")["env"]), _PLAIN)


_PLAIN_FILES = {
    "tests/test_state.py": _STATE.replace("gpu_ids, free_port", "").replace(
        ', "gpu_ids": gpu_ids, "free_port": free_port', ""
    )
}


def _PLAIN(run: Run) -> Run:
    return replace(plain_pytest("tests/test_state.py")(run), files={**run.files, **_PLAIN_FILES})


def _no_run(seen: Seen, name: str) -> bool:
    return bool(unit(seen, name)["outcome"] == "not_run")


FEATURES = (
    Feature(
        "run --device-ids",
        STUB,
        "the number of a GPU",
        lambda s: s.load("state.json")["env"]["CUDA_VISIBLE_DEVICES"] in {"1", "2"},
    ),
    _marker("gpus(min_capability)", ", min_capability=9.5", "a file that cannot run", lambda s: _no_run(s, "new")),
    _marker("gpus(memory_gb)", ", memory_gb=900", "a file that cannot run", lambda s: _no_run(s, "big")),
    _marker("gpus(model)", ", model='Unknown'", "a file that cannot run", lambda s: _no_run(s, "model")),
    _marker(
        "timeout", "@pytest.mark.timeout(8)", "an end after 8 s", lambda s: unit(s, "limited")["outcome"] == "timed_out"
    ),
    Feature(
        "fixture gpu_ids",
        STUB,
        "the leased GPU",
        lambda s: (
            [str(each) for each in s.load("state.json")["gpu_ids"]]
            == [s.load("state.json")["env"]["CUDA_VISIBLE_DEVICES"]]
        ),
        plain_pytest("tests/test_state.py"),
    ),
    Feature(
        "fixture free_port",
        STUB,
        "a port",
        lambda s: 1024 < s.load("state.json")["free_port"] < 65536,
        plain_pytest("tests/test_state.py"),
    ),
    _variable("CUDA_VISIBLE_DEVICES", "one of the GPUs", lambda env: env["CUDA_VISIBLE_DEVICES"] in {"1", "2"}),
    _variable("CUDA_DEVICE_ORDER", "the order of numbers", lambda env: env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"),
    _variable("OMP_NUM_THREADS", "a share of the cores", lambda env: int(env["OMP_NUM_THREADS"]) >= 1),
    Feature(
        "variable OMP_NUM_THREADS of the user",
        STUB,
        "a share of the cores, unless the user has set it",
        lambda s: s.load("state.json")["env"]["OMP_NUM_THREADS"] != "77",
        with_env(OMP_NUM_THREADS="77"),
    ),
    _variable("TORCHINDUCTOR_CACHE_DIR", "one for all files", lambda env: env["TORCHINDUCTOR_CACHE_DIR"]),
    _variable("TMPDIR", "a directory of the file's own", lambda env: env["TMPDIR"] and env["RLHARNESS_ATTEMPT"]),
    _variable("RLHARNESS_ATTEMPT", "the marker of the attempt", lambda env: env["RLHARNESS_ATTEMPT"]),
    _variable("RLHARNESS_LEASE", "marker and GPU", lambda env: "GPU-" in env["RLHARNESS_LEASE"]),
    Feature(
        "run --",
        STUB,
        "pytest without the plugin that limits tests too",
        lambda s: unit(s, "limited")["outcome"] == "timed_out",
        lambda run: replace(run, command=run.command[:-3]),
    ),
    _variable("MASTER_PORT", "a port", lambda env: 1024 < int(env["MASTER_PORT"]) < 65536),
    _variable("PYTEST_XDIST_WORKER", "the slot", lambda env: re.fullmatch(r"gw\d+", env["PYTEST_XDIST_WORKER"])),
    _variable("PYTEST_XDIST_WORKER_COUNT", "GPUs and slots", lambda env: int(env["PYTEST_XDIST_WORKER_COUNT"]) > 3),
    _variable("PYTEST_XDIST_TESTRUNUID", "the run", lambda env: env["PYTEST_XDIST_TESTRUNUID"]),
    _variable("RAY_ADDRESS", "none", lambda env: "RAY_ADDRESS" not in env and env["PYTEST_CURRENT_TEST"]),
    _variable("RAY_TMPDIR", "none", lambda env: "RAY_TMPDIR" not in env and env["PYTEST_CURRENT_TEST"]),
    Feature(
        "variable DEBUG_PORT",
        STUB,
        "a debugger that waits",
        lambda s: s.read("debugger.txt") == "5678" and s.has("waited.txt"),
    ),
    Feature(
        "run --gpus=as-is",
        AS_IS,
        "a busy GPU that is used",
        lambda s: unit(s, "env")["outcome"] == "passed",
        edited("as-is:0", "0,"),
    ),
    Feature(
        "[tool.rlharness] device-ids",
        AS_IS,
        "the number of a GPU",
        lambda s: s.load("state.json")["env"]["CUDA_VISIBLE_DEVICES"] == "0",
    ),
    Feature("run --wait", WAIT, "a wait for the GPU", lambda s: "waiting for" in s.err + s.out),
    Feature("[tool.rlharness] wait", WAIT_KEY, "a wait for the GPU", lambda s: "waiting for" in s.err + s.out),
    _marker(
        "together",
        '@pytest.mark.together("pair")',
        "two tests in one process, of a file in parts",
        lambda s: len(s.json["units"]) > 2 and s.read("first.pid") == s.read("last.pid"),
        PARTS,
    ),
    Feature(
        "marker gpus",
        PLAN,
        "two GPUs",
        lambda s: len(scheduled(s, "two")["gpu_ids"]) == 2,
        edited("gpus(2)", "gpus(1)"),
    ),
    _marker("gpus(exclusive)", ", exclusive=True", "the machine", lambda s: scheduled(s, "alone")["exclusive"], PLAN),
    _marker(
        "gpus(shared)",
        ", shared=True",
        "two files on a GPU at a time",
        lambda s: (
            scheduled(s, "shared")["start_s"] == scheduled(s, "shared2")["start_s"]
            and scheduled(s, "shared")["gpu_ids"] == scheduled(s, "shared2")["gpu_ids"]
        ),
        PLAN,
    ),
    Feature(
        "fixture distributed",
        RANKS,
        "two ranks",
        lambda s: unit(s, "ranks")["outcome"] == "passed",
        edited("'harness.fixtures'", ""),
    ),
    Feature(
        "fixture ray_cluster",
        RANKS,
        "a cluster of two nodes",
        lambda s: unit(s, "ray")["outcome"] == "passed",
        edited("'harness.fixtures'", ""),
    ),
)
