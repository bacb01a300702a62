"""A run at a terminal: the lines of its processes, and below them a bar and the numbers of the last step.

infer, orch, train ──pipes──▶ terminal ◀── metrics.jsonl of train, rollouts.jsonl of orch
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from harness.bits.files import MALFORMED, parse_object
from rlcore.asynchronous.directory import METRICS_LOG, ROLLOUTS_LOG

ROWS = {
    METRICS_LOG: "train  reward {reward_mean:.3g}  kl {kl:.2g}  masked {masked:.0%}  {versions_apart} versions apart"
    "  {tokens_per_s:.0f} tokens/s  idle {idle:.0%}",
    ROLLOUTS_LOG: "orch   {in_flight} groups in flight  {waiting} requests wait  discarded {discarded_share:.0%}"
    "  {tokens_per_s:.0f} tokens/s  idle {idle:.0%}",
}
"""What is shown of the last line of a file."""
MAX_BYTES = 1 << 22
"""Of a line."""


class Live:
    """A bar of steps and a row for each of ROWS; nothing where `is_shown` is false."""

    def __init__(self, run: Path, num_steps: int | None, *, is_shown: bool) -> None:
        """Begin at the step where the run is."""
        self._run, self._sizes = run, dict.fromkeys(ROWS, 0)
        new = partial(tqdm, file=sys.stderr, dynamic_ncols=True, disable=not is_shown)
        done = last_line(run / METRICS_LOG).get("step", -1) + 1
        self._bar = new(desc="grpo", unit="step", total=num_steps, initial=done, position=0)
        self._rows = {name: new(bar_format="{desc}", position=at) for at, name in enumerate(ROWS, start=1)}

    def show(self) -> None:
        """Show the last line of each file that has grown."""
        for name, row in self._rows.items():
            path = self._run / name
            size = path.stat().st_size if path.exists() else 0
            if row.disable or size == self._sizes[name]:
                continue
            self._sizes[name] = size
            try:
                found = last_line(path)
                row.set_description_str(ROWS[name].format(**found))
                if name == METRICS_LOG:
                    self._bar.update(found["step"] + 1 - self._bar.n)
            except MALFORMED:  # of an earlier version
                continue

    def __enter__(self) -> "Live":
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last numbers on the terminal."""
        self.show()
        for each in (self._bar, *self._rows.values()):
            each.close()


def last_line(path: Path) -> dict[str, Any]:
    """Return the last object of a file of JSON lines, or an empty one."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - MAX_BYTES))
            return dict(parse_object(file.read().splitlines()[-1]))
    except (OSError, *MALFORMED):
        return {}
