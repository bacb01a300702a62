"""Old traces stay readable: what `diff` reports of traces that the base has recorded, of each kind.

tests/data/traces has them, the programs that they were recorded from, and in pairs.json what the base reports of each
pair. `python -m tests.guards.record_corpus` made all of it.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.guards import base
from tests.guards.guard import ROOT, Context, Row, in_parallel, rlharness

TRACES = ROOT / "tests" / "data" / "traces"
RECORDED, PAIRS = TRACES / "recorded", TRACES / "pairs.json"


def rows(context: Context) -> Iterator[Row]:
    """Compare each pair; the same in the quick part."""
    context.work.mkdir(parents=True, exist_ok=True)

    def row(item: tuple[str, dict[str, Any]]) -> Row:
        name, pair = item
        seen = compare(pair, ROOT, context.work)
        differ = [key for key in pair["frozen"] | seen if pair["frozen"].get(key) != seen.get(key)]
        return Row(name, "; ".join(f"{key} is {seen.get(key)}, was {pair['frozen'].get(key)}" for key in differ))

    return in_parallel(row, json.loads(PAIRS.read_text("utf-8")).items())


def compare(pair: Mapping[str, Any], checkout: Path, cwd: Path) -> dict[str, Any]:
    """Return what a checkout's `diff` reports of a pair of traces."""
    traces = [str(RECORDED / pair[side]) for side in ("a", "b")]
    done = rlharness("diff", "--json", *pair["options"], *traces, cwd=cwd, env=base.environment(checkout))
    return {"exit": done.returncode, **(reported(json.loads(done.stdout)) if done.stdout else {})}


def reported(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is frozen of the output of `diff --json`, whose shape no other place knows; of an error, nothing."""
    if "verdict" not in verdict:
        return {}
    first = verdict["first"] or {}
    sides = [first.get(side) or {} for side in ("a", "b")]
    value = {**sides[1], **sides[0]}
    elements = first.get("value") or {}
    operation = ((verdict["operations"] or {}).get("first") or {}).get("a") or {}
    return {
        "verdict": verdict["verdict"],
        "step": first.get("step"),
        "phase": value.get("phase"),
        "name": value.get("name"),
        "rank": first.get("rank"),
        "digests": [side.get("digest") for side in sides],
        "elements": elements.get("num_different"),
        "operation": operation.get("name"),
        "curve": [[point["step"], point["name"]] for point in verdict["curve"][:1]],
    }
