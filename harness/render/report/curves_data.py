"""The curves as the page's script takes them."""

from typing import Any

from harness.bits.text import one_line
from harness.lab.report.subjects import Report
from harness.render.report.curves import panels


def curves_data(report: Report) -> dict[str, Any]:
    """Data that the script plots."""
    found = panels([subject.trace.curve for subject in report.subjects])
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
                "cost": panel.is_cost,
            }
            for panel in found
        ],
    }
