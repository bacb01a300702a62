"""When a run looks at the network first, and what it does not repeat."""

from pathlib import Path

import pytest

from harness.runner.need import Need
from harness.runner.run import needs_network
from harness.runner.units import NeedSource, Unit
from tests.support.suite_runs import run, write_suite

TELLS = """
import os
import pytest
def test_tells():
    told = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(("RLHARNESS_PRE", "NCCL_", "GLOO_")))
    assert told == [], "told: " + " ".join(told)
"""


def unit(tmp_path: Path, source: str, gpus: int = 0, collect_error: str = "") -> Unit:
    (tmp_path / "test_a.py").write_text(source, "utf-8")
    return Unit("test_a.py", Need(gpus=gpus), NeedSource.IMPORT, collect_error=collect_error)


@pytest.mark.parametrize(
    ("source", "gpus", "needs"),
    [
        ("", 0, False),
        ("", 1, False),
        ("", 2, True),
        ("import ray\n", 0, True),
        ("def test_a():\n    from ray.util import state\n", 0, True),
        ("import os, sys\nimport ray.train\n", 1, True),
        ("import rayon\n# ray\nx = 'import ray'\n", 0, False),
        ("from .ray import x\nfrom array import array\n", 0, False),
    ],
)
def test_two_cards_or_ray(tmp_path: Path, source: str, gpus: int, needs: bool) -> None:
    assert needs_network(unit(tmp_path, source, gpus), tmp_path) is needs


@pytest.mark.full
def test_a_run_that_has_looked_says_so_to_every_file(tmp_path: Path) -> None:
    two_cards = TELLS.replace("def test", "@pytest.mark.gpus(2)\ndef test")
    write_suite(tmp_path, {"test_a.py": two_cards, "test_b.py": TELLS})
    done = run(tmp_path, "run", "--gpus", "sim:2", "--cpu-units", "1", env={"NCCL_SOCKET_IFNAME": "eth7"})
    done.assert_sound()
    assert done.stdout.count("told: NCCL_SOCKET_IFNAME=eth7 RLHARNESS_PREFLIGHT=done\n") == 2
    (note,) = [note for note in done.of("collection_finished")[0]["notes"] if "eth7" in note]
    assert note.startswith("NCCL_SOCKET_IFNAME=eth7: no running interface matches 'eth7'; NCCL will refuse to start")
    assert done.stdout.count(note) == 1


@pytest.mark.full
def test_a_run_without_need_of_the_network_looks_at_nothing(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_b.py": TELLS})
    done = run(tmp_path, "run", "--gpus", "sim:2", env={"NCCL_SOCKET_IFNAME": "eth7"})
    assert "told: NCCL_SOCKET_IFNAME=eth7\n" in done.stdout
    assert "no running interface" not in done.stdout
