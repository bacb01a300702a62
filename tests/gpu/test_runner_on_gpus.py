"""The runner on real GPUs; one command on a machine that has some: `rlharness run tests/gpu --gpus auto`.

Each test starts a runner of its own inside the lease it was given, on files it writes. Without a GPU each skips,
saying so.
"""

from pathlib import Path

import pytest

from tests.gpu.inner_runs import need_gpus, run_inside

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("own_cache")  # for the histories of runs

HOLDS_MEMORY = """
import os, signal, subprocess, sys, time
import pytest, torch

HOLDER = (
    "import os, sys, time, torch\\n"
    "os.setsid()\\n"
    "held = torch.zeros(2**31, dtype=torch.uint8, device='cuda')\\n"
    "torch.cuda.synchronize()\\n"
    "open(sys.argv[1], 'w').write(str(os.getpid()))\\n"
    "time.sleep(600)\\n"
)

@pytest.mark.gpus(1)
def test_is_killed_while_a_child_holds_two_gigabytes(tmp_path):
    ready = tmp_path / "ready"
    subprocess.Popen([sys.executable, "-c", HOLDER, str(ready)])
    while not ready.exists():
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
"""

SEES_AN_EMPTY_CARD = """
import pytest, torch

@pytest.mark.gpus(1)
def test_the_card_is_empty():
    free, total = torch.cuda.mem_get_info()
    assert total - free < 2**30
"""

HANGS_IN_A_KERNEL = """
import pytest, torch

@pytest.mark.gpus(1)
@pytest.mark.timeout(5)
def test_waits_for_a_kernel_that_does_not_end():
    torch.ones(1, device="cuda").sum().item()
    for _ in range(64):
        torch.cuda._sleep(2**40)
    torch.cuda.synchronize()
"""


@pytest.mark.gpus(1)
def test_memory_left_by_a_killed_test_is_given_back_before_the_next_lease(tmp_path: Path) -> None:
    need_gpus(1)
    files = {"test_a_holds.py": HOLDS_MEMORY, "test_b_sees.py": SEES_AN_EMPTY_CARD}
    code, summary = run_inside(tmp_path, files)
    outcomes = {unit["path"]: unit["outcome"] for unit in summary["units"]}
    assert outcomes == {"test_a_holds.py": "crashed", "test_b_sees.py": "passed"}
    assert summary["quarantined"] == []
    assert code == 1


@pytest.mark.gpus(1)
def test_a_kernel_that_hangs_is_ended_and_the_card_is_usable_again(tmp_path: Path) -> None:
    need_gpus(1)
    files = {"test_a_hangs.py": HANGS_IN_A_KERNEL, "test_b_sees.py": SEES_AN_EMPTY_CARD}
    code, summary = run_inside(tmp_path, files, "--grace", "2")
    units = {unit["path"]: unit for unit in summary["units"]}
    assert units["test_a_hangs.py"]["outcome"] == "timed_out"
    stacks = Path(units["test_a_hangs.py"]["directory"], "stacks.txt").read_text()
    assert "synchronize" in stacks or "permission" in stacks.lower(), "a container may forbid to look at its processes"
    assert units["test_b_sees.py"]["outcome"] == "passed"
    assert code == 1
