"""A TMPDIR whose file system hangs, for real: whoever writes to it sleeps where no signal reaches it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.process.clock import SystemClock
from tests.support.suite_runs import environment

NEEDED = ("mkfs.ext4", "mount", "umount", "fsfreeze")
THAW_S = 40
UMOUNT_S = 15.0


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system that takes no writes until the test is over, or `THAW_S` seconds have passed."""
    if missing := [program for program in NEEDED if shutil.which(program) is None]:
        pytest.skip(f"freezing a file system needs {', '.join(missing)}")
    if os.geteuid() != 0:
        pytest.skip("freezing a file system needs root")
    image, place = tmp_path / "image", tmp_path / "frozen"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    thaw = f"sleep {THAW_S}; fsfreeze -u {place}; umount {place}"  # also where this process is killed
    watchdog = subprocess.Popen(["sh", "-c", thaw], start_new_session=True, stderr=subprocess.DEVNULL)
    try:
        subprocess.run(["fsfreeze", "-f", place], check=True)
        yield place
    finally:
        subprocess.run(["fsfreeze", "-u", place], check=False)
        os.killpg(watchdog.pid, 9)
        watchdog.wait()
        clock = SystemClock()
        until_s = clock.monotonic_s() + UMOUNT_S
        while subprocess.run(["umount", place], capture_output=True, check=False).returncode != 0:
            assert clock.monotonic_s() < until_s, "somebody still holds the file system"


CODE = """
import sys
from harness.cli.main import main
from harness.doctor import checks, host, resources
resources.TRIAL_S, host.UNKILLABLE_AFTER_S = 0.5, 0.5
checks.CHECKS = tuple(check for check in checks.CHECKS if check.name in ("TMPDIR", "ulimits"))
sys.exit(main(["doctor", "--json"]))
"""


@pytest.mark.full
def test_a_tmpdir_that_hangs_is_found_and_hangs_nobody_else(frozen: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=environment() | {"TMPDIR": str(frozen)},
        capture_output=True,
        text=True,
        timeout=THAW_S - 5,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    found = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert "create: no answer within 0.5 s; it cannot be killed" in found["TMPDIR"]["measured"]
    assert found["TMPDIR"]["exports"]["TMPDIR"] != str(frozen)
    assert found["ulimits"]["severity"] == "fine" or found["ulimits"]["remedy"]
