"""The proof of a run's ledger: every group was trained or discarded, once, and every batch holds its groups whole."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.asynchronous.directory import (
    FAILED,
    FILTERED,
    RUN,
    SURPLUS,
    TOO_OLD,
    TRAINED,
    Ledger,
    ledger_of,
    read_batches,
)
from rlcore.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Audit:
    """What the ledgers of a run say together."""

    num_batches: int
    fates: dict[str, int]
    """Groups by what became of them."""
    lost: list[int]
    """Groups that no ledger names, though the run is over."""
    on_their_way: list[int]
    """The same of a run that is not, and in which groups end in any order."""
    doubled: list[int]
    """Groups that ledgers name more than once."""
    wrong: list[str]
    """Batches whose rows are not those of their groups, each with the first that is not."""

    @property
    def is_right(self) -> bool:
        """Whether nothing is lost, doubled or wrong."""
        return not (self.lost or self.doubled or self.wrong)

    def lines(self) -> list[str]:
        """Return what to show."""
        found = ", ".join(f"{number} {fate}" for fate, number in self.fates.items())
        lines = [f"{self.num_batches} batches, {sum(self.fates.values())} groups: {found or 'none'}"]
        lines += [f"{len(self.on_their_way)} groups on their way"] if self.on_their_way else []
        lines += [f"lost: groups {self.lost[:8]}, {len(self.lost)} in all"] if self.lost else []
        lines += [f"twice: groups {self.doubled[:8]}, {len(self.doubled)} in all"] if self.doubled else []
        return [*lines, *self.wrong, "every group once" if self.is_right else "the ledger is WRONG"]


def audit(run: Path) -> Audit:
    """Read every batch of a run. Raises CheckpointError for one that is missing or damaged."""
    times, fates, wrong, is_over, step = Counter[int](), Counter[str](), list[str](), False, -1
    for step, batch in enumerate(read_batches(run)):
        ledger = ledger_of(batch)
        times.update(group for group, _, _ in ledger)
        fates.update(fate for _, _, fate in ledger)
        is_over = batch["is_last"] or batch["in_order"]
        if what := _first_wrong(batch, ledger):
            wrong.append(f"batches/step_{step}: {what}")
    if step < 0:
        raise CheckpointError(f"{run} has no batches", remedy=f"name the directory of a run, as outputs/{RUN}")
    holes = sorted(set(range(max(times, default=-1) + 1)) - set(times))
    doubled = sorted(group for group, number in times.items() if number > 1)
    ordered = {fate: fates[fate] for fate in (TRAINED, TOO_OLD, FAILED, FILTERED, SURPLUS) if fates[fate]}
    return Audit(step + 1, ordered, holes if is_over else [], [] if is_over else holes, doubled, wrong)


def _first_wrong(batch: Mapping[str, Any], ledger: Ledger) -> str:
    """Return the first thing that is wrong with the rows of a batch, or nothing."""
    rows, size = batch["rows"], batch["group_size"]
    found = Counter((row["group"], row["version"]) for row in rows)
    expected = {(group, version): size for group, version, fate in ledger if fate == TRAINED}
    partly = {(group, version) for group, version, fate in ledger if fate == FAILED}
    if {key: number for key, number in found.items() if key not in partly} != expected:
        return f"rows of groups {[*found][:4]}, and {[*expected][:4]} in its ledger"
    if not batch["is_by_mean"]:
        return ""
    rewards = defaultdict[int, dict[int, float]](dict)
    for row in rows:
        if row["sample"] in rewards[row["group"]]:
            return f"sample {row['sample']} of group {row['group']} twice"
        rewards[row["group"]][row["sample"]] = math.nan if row["reward"] is None else row["reward"]
    for row in (row for row in rows if row["reward"] is not None):
        own = [reward for reward in rewards[row["group"]].values() if not math.isnan(reward)]
        mean = math.fsum(own) / len(own) if len(own) > 1 else 0.0
        if abs(row["advantage"] - (row["reward"] - mean)) > 1e-9 * max(1.0, *map(abs, own)):
            return f"sample {row['sample']} of group {row['group']} has advantage {row['advantage']:.3g}, not its own"
    return ""
