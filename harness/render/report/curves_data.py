"""The curves as the page's script takes them, and below them what the runs have measured in files of their own."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from harness.bits.text import one_line
from harness.lab.experiments.metrics_file import METRICS, read_metrics
from harness.lab.report.subjects import Report
from harness.render.report.curves import Panel, panels
from harness.trace.curve import CurvePoint, common_names
from harness.trace.values import Float

MEASURED = (METRICS, f"*/{METRICS}", "*/rollouts.jsonl")
"""Files of measured values, relative to a trace."""
MAX_MEASURED = 60
"""Maximum number of panels of measured values."""
MAX_STEP = 2**53


def curves_data(report: Report) -> dict[str, Any]:
    """Data that the script plots."""
    curves = [subject.trace.curve for subject in report.subjects]
    recorded = panels(curves)
    known = {name for curve in curves for name in common_names(curve)}
    measured = panels([list(measured_points(subject.trace.directory, known)) for subject in report.subjects])
    letters = [subject.letter for subject in report.subjects]
    parts = [(pair.b.letter, pair.verdict.first.step) for pair in report.pairs if pair.verdict.first is not None]
    return {
        "letters": letters,
        "parts": [{"letter": letter, "step": step} for letter, step in parts],
        "panels": [
            {
                "name": one_line(panel.name, 60),
                "steps": panel.steps,
                "lines": panel.lines,
                "together": panel.num_together,
                "wild": [f"{letters[run]} is {text} from step {step} on" for run, step, text in panel.non_finite],
                "place": place,
            }
            for panel, place in _placed(recorded, measured)
        ],
    }


def _placed(recorded: Iterable[Panel], measured: list[Panel]) -> Iterator[tuple[Panel, str]]:
    yield from ((panel, "cost-panels" if panel.is_cost else "panels") for panel in recorded)
    yield from ((panel, "measured-panels") for panel in measured[:MAX_MEASURED])


def measured_points(directory: Path, known: set[str]) -> Iterator[CurvePoint]:
    """Yield the values of each step, named after their file, that the curves do not have; of a step the last line."""
    found: dict[int, dict[str, Float]] = defaultdict(dict)
    for path in (path for pattern in MEASURED for path in sorted(directory.glob(pattern))):
        for line in read_metrics(path):
            step = line.get("step", -1.0)
            if 0 <= step < MAX_STEP:
                named = {f"{path.stem}: {name}": Float.of(line[name], "f64") for name in line.keys() - {"step", *known}}
                found[int(step)] |= dict(sorted(named.items()))
    return (CurvePoint(step, values, "") for step, values in sorted(found.items()))
