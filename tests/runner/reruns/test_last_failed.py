"""--last-failed and --failed-first: pytest's own, with the outcomes that only the run knows."""

from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from tests.support.suite_runs import QUICK, run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")


def test_what_failed_runs_again_until_nothing_does(tmp_path: Path) -> None:
    """Tests that fail, a test without an end, and files that cannot be imported or end the session."""
    files = {
        "test_a.py": QUICK,
        "test_b.py": "import os\ndef test_fine(): open('ran', 'a').write('f')\n"
        "def test_bad(): assert 'repaired' in os.listdir()\n",
        "test_c.py": "import absent\n",
        "test_d.py": "import os\nos._exit(3)\n",
        "test_e.py": "import os\ndef test_fine(): pass\ndef test_exits(): 'repaired' in os.listdir() or os._exit(3)\n",
    }
    write_suite(tmp_path, files)
    words = ("run", "--gpus", "none", "--cpu-units", "1")
    assert run(tmp_path, *words, "--lf").outcomes.keys() == files.keys(), "nothing is known yet"
    again = run(tmp_path, *words, "--last-failed")
    assert again.outcomes == {
        "test_b.py": "failed",
        "test_c.py": "collect_error",
        "test_d.py": "collect_error",
        "test_e.py": "crashed",
    }
    assert (tmp_path / "ran").read_text() == "f"
    for path in ("test_c.py", "test_d.py"):
        (tmp_path / path).write_text(QUICK)
    (tmp_path / "repaired").touch()
    first = run(tmp_path, *words, "--failed-first", "-k", "not fine")
    assert {event["path"] for event in first.of("attempt_started")[:4]} == files.keys() - {"test_a.py"}
    last = run(tmp_path, *words, "--last-failed")
    assert (last.code, len(last.outcomes)) == (ExitCode.OK, 5)
