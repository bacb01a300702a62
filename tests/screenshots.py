"""Makes the pictures of the documents from real runs, in a real browser.

python tests/screenshots.py             all of them, into .github/screenshots
python tests/screenshots.py report      those of one name

A picture is a function in PICTURES: it is given a scratch directory, and returns PNG by file name. They are brought
down to 256 colours, which nobody sees, and must be smaller than MAX_BYTES.
"""

import io
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.lab.wrong_axis import SCENARIO  # noqa: E402
from tests.support.browser import browser, missing  # noqa: E402
from tests.support.suite_runs import HARNESS, environment  # noqa: E402

PLACE = ROOT / ".github" / "screenshots"
MAX_BYTES = 300_000
SCALE = 1.5
SIZE = (1100, 900)
WRONG_FROM = 12


def report(scratch: Path) -> Mapping[str, bytes]:
    """Two GRPO runs, of which one normalises advantages over the wrong axis from step 12 on."""
    (scratch / "grpo.yaml").write_text(SCENARIO, encoding="utf-8")
    typed = (
        "train grpo.yaml --out first",
        f"train grpo.yaml --out second --set runtime.wrong_from={WRONG_FROM}",
        "report first second",
    )
    for words in typed:
        command = [*HARNESS, *words.split()]
        subprocess.run(command, cwd=scratch, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, check=True)
    page = scratch / "report.html"
    with browser() as tab:
        tab.open(page, size=SIZE, scale=SCALE)
        light = tab.picture(".top", "section[aria-labelledby=curves]")
    return {"report_light.png": light}


SLEEPS: Mapping[str, tuple[int, Mapping[str, float]]] = {
    "sampler_speculative": (1, {"greedy": 2.5, "top_k": 1.5, "top_p": 2.0}),
    "sampler_prefix_cache": (1, {"hits": 2.0, "evicts": 1.5}),
    "fsdp_resharding": (2, {"shards": 3.0, "gathers": 2.5, "saves": 1.5}),
    "tensor_parallel": (2, {"columns": 2.5, "rows": 3.5}),
    "weights_sync": (4, {"broadcast": 2.5, "receipt": 1.0}),
    "rewards": (0, {"parses": 1.0, "times_out": 3.0, "scores": 0.5}),
    "packing": (0, {"fits": 1.5, "orders": 1.0}),
}
"""A suite for the page of a run: number of GPUs of each file, and seconds of its tests."""
BROKEN = ("evicts", "scores")
"""Of its tests, those that fail in the second run."""


def run(scratch: Path) -> Mapping[str, bytes]:
    """The page of a run on four simulated GPUs: the second one, in which two tests fail."""
    (scratch / "tests").mkdir()
    (scratch / "pyproject.toml").write_text("[tool.rlharness]\n", encoding="utf-8")
    page = scratch / ".rlharness" / "runs" / "latest" / "run.html"
    for broken, factor in (((), 1.0), (BROKEN, 2.0)):
        for name, (num_gpus, tests) in SLEEPS.items():
            lines = ["import time", "import pytest", f"pytestmark = pytest.mark.gpus({num_gpus})"]
            for test, seconds in tests.items():
                slept = seconds * factor if test == "greedy" else seconds
                lines += [f"def test_{test}():", f"    time.sleep({slept})", f"    assert {test not in broken}"]
            (scratch / "tests" / f"test_{name}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
        words = (*HARNESS, "run", "--gpus", "sim:4", "--cpu-units", "2")
        subprocess.run(words, cwd=scratch, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, check=False)
    with browser() as tab:
        tab.open(page, size=SIZE, scale=SCALE)
        light = tab.picture(".top", "section[aria-labelledby=slowest]")
    return {"run_light.png": light}


PICTURES: dict[str, Callable[[Path], Mapping[str, bytes]]] = {"report": report, "run": run}


def smaller(png: bytes) -> bytes:
    """The same picture in 256 colours."""
    with Image.open(io.BytesIO(png)) as picture:
        made = io.BytesIO()
        picture.convert("RGB").quantize(256, kmeans=3, dither=Image.Dither.NONE).save(made, "png", optimize=True)
    return made.getvalue()


def main(names: list[str]) -> int:
    """Make the pictures of these names; of all, where none is given."""
    if unknown := set(names) - PICTURES.keys():
        print(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    if missing():
        print(f"not on this machine: {', '.join(missing())}", file=sys.stderr)
        return 2
    too_large = False
    for name in names or PICTURES:
        with tempfile.TemporaryDirectory(prefix="rlh-pictures-") as scratch:
            for file, png in PICTURES[name](Path(scratch)).items():
                data = smaller(png)
                (PLACE / file).write_bytes(data)
                too_large |= len(data) > MAX_BYTES
                print(f"{file}: {len(data) / 1e3:.0f} kB")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
