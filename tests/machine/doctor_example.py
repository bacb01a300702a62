"""Makes the pictures of the doctor's page from real runs, as root on a machine that allows namespaces.

python tests/machine/doctor_example.py    puts them into .github/screenshots
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.lab.examples import terminal_picture  # noqa: E402
from tests.support.suite_runs import HARNESS  # noqa: E402

DOCTOR = (*HARNESS, "doctor", "--color", "always")
ALONE = (
    *("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c"),
    'ip link set lo up && mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$0" "$@"',
    *DOCTOR,
)
"""The doctor without a network, and with the /dev/shm that Docker gives."""
PICTURES = {
    "doctor": ("rlharness doctor", DOCTOR),
    "doctor_without_network": ("unshare --net --mount --pid --fork ... rlharness doctor", ALONE),
}


def main() -> None:
    """Run the doctor both ways, and write both pictures."""
    for name, (shown, command) in PICTURES.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        path = ROOT / ".github" / "screenshots" / f"{name}.svg"
        path.write_text(terminal_picture(f"$ {shown}\n{done.stdout}", "rlharness doctor"), encoding="utf-8")


if __name__ == "__main__":
    main()
