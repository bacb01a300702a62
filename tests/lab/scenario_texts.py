"""Scenarios for tests, as text."""

from pathlib import Path

TINY = """\
about: A sum in parts
entry: tests.lab.tiny_entry:run
determinism: invariant
sizes:
  smoke: {num_steps: 3}
  full: {}
runtime_sections: [runtime, output]
config:
  seed: 1
  num_steps: 5
  leaks: false
  runtime: {num_parts: 4}
  output: {}
"""


def write_tiny(directory: Path, name: str = "tiny") -> Path:
    """The scenario `tiny` of a project in this directory."""
    path = directory / "scenarios" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(TINY, encoding="utf-8")
    return path
