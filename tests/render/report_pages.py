"""Pages of reports for tests: traces written by hand, with everything that a page can show."""

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.cli.report import read_report
from harness.render.report_page import page
from harness.trace.format import Kept
from harness.trace.manifest import Manifest
from harness.trace.values import Float
from harness.trace.writer import TraceWriter
from tests.support.traces import manifest_of, recorded_value, scalar, value

NUM_STEPS = 12
HOSTILE = "<script>alert(1)</script>"


def rollout(tokens: tuple[int, ...]) -> list[Kept]:
    """Two sequences of four tokens, of which the first was the prompt, and a reward for each."""
    return [
        value("rollout", "tokens", "i64", (2, 4), struct.pack("<8q", 1, 2, 3, 4, 1, *tokens)),
        value("rollout", "loss_mask", "bool", (2, 4), bytes([0, 1, 1, 1] * 2)),
        value("reward", "rewards", "f64", (2,), struct.pack("<2d", 1.0, sum(tokens) / 8)),
    ]


def write_run(
    directory: Path, *, parts_at: int = NUM_STEPS, name: str = "layers.0.weight", manifest: Manifest | None = None
) -> Path:
    """A run whose gradient is another from `parts_at` on, and one step later its tokens; nothing differs by default."""
    with TraceWriter(directory, manifest or manifest_of(), say=print) as writer:
        for step in range(NUM_STEPS):
            is_other = step >= parts_at
            kept = rollout((5, 6, 7 if step <= parts_at else 4))
            recorded_values = [each for each, _ in kept] + [
                recorded_value("forward", "logprobs", step),
                scalar("loss", "loss", 0x3F800000 + step),
                recorded_value("backward", name, (step, is_other)),
                *[recorded_value("optimizer", f"layers.{at}.weight", (step, at, is_other)) for at in range(50)],
            ]
            writer.append(step, recorded_values, curve(step, is_other), tensors=kept)
    return directory


def curve(step: int, is_other: bool) -> Mapping[str, Float]:
    return {
        "reward_mean": Float.of(0.5 + step / 40 + is_other / 20, "f64"),
        "loss": Float.of(1 / (1 + step), "f32"),
        "step_time": Float.of(1.5, "f64"),
    }


def write_pair(directory: Path) -> tuple[Path, Path]:
    """Two runs that part at step 5, with hostile text wherever text can be."""
    fields = {"identity": {f"name {HOSTILE}": HOSTILE}, "numerics": {"python": "3.11"}}
    manifest = replace(manifest_of(**fields), argv=("python", f"{HOSTILE}.py", "--token", "hunter2hunter2"))
    a = write_run(directory / "a", name=f"w{HOSTILE}", manifest=manifest)
    b = write_run(directory / "b", name=f"w{HOSTILE}", manifest=manifest, parts_at=5)
    return a, b


def page_of(directory: Path, *runs: Path) -> str:
    return page(read_report(directory, [str(run.relative_to(directory)) for run in runs]))
