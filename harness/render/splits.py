"""Sentences about test files that run in parts, and about those that cannot."""

from harness.bits.text import count, one_line
from harness.runner.schedule.splitting import Obstacle, Split, SplitReason

OBSTACLES = {
    Obstacle.ONE_TEST: "it has one test",
    Obstacle.SHORT: "its parts would take less than 1 s",
    Obstacle.NOT_COLLECTED: "its tests could not be listed before the run",
}
TIES = {
    "together": "its tests are marked to run together ({})",
    "marker": "its tests have the marker {}",
    "class": "its tests share a class-scoped fixture of {}",
    "module-fixture": "its tests share the module-scoped fixture {}",
    "package-fixture": "its tests share the package-scoped fixture {}",
}


def split_line(split: Split) -> str:
    """Return a line about one file: its number of parts or the obstacle, and why it is to be split."""
    path, why = one_line(split.path), _why(split)
    if split.obstacle is None:
        return f"{path} is split into {count(split.num_parts, 'part')}: {why}"
    obstacle = tie_text(split.detail) if split.obstacle is Obstacle.TIED else OBSTACLES[split.obstacle]
    return f"{path} is not split: {obstacle} ({why})"


def tie_text(tie: str) -> str:
    """Return what ties tests to each other, in words."""
    kind, _, name = tie.partition(" ")
    return TIES[kind].format(one_line(name)) if kind in TIES else "its tests run together"


def _why(split: Split) -> str:
    match split.reason:
        case SplitReason.DOMINATES:
            return f"it takes {split.expected_s:.1f} s, and all work spread evenly takes {split.bound_s:.1f} s"
        case SplitReason.FEW_FILES:
            return "there are fewer files than GPUs or CPU slots for them, and no duration is known"
    return "its tests need different numbers of GPUs"
