"""The faulty trainings as scenarios of a project."""

from pathlib import Path

SCENARIO = """\
about: A small training in which something may be wrong
entry: tests.lab.chaos.faulty_entries:{entry}
determinism: invariant
runtime_sections: [runtime, output]
resume: {{run: output.resume, step: output.resume_step}}
chaos:
  factors:
    runtime.concurrency: [24, 1, 5, 23]
    runtime.arrival_seed: {{min: 0, max: 1000}}
    runtime.microbatch_size: [24, 8, 5, 7]
    runtime.training_threads: {{min: 1, max: 2}}
    runtime.world_size: {{min: 1, max: 6}}
    runtime.tool_threads: {{min: 1, max: 4}}
  latency: [tests.lab.chaos.faulty_entries:ask]
  crash: {{output.checkpoint_every: 1}}
config:
  seed: 1
  num_steps: 4
  runtime:
    concurrency: 24
    arrival_seed: 0
    microbatch_size: 24
    training_threads: 1
    world_size: 1
    tool_threads: 1
  output: {{checkpoint_every: 0}}
"""


def write_scenario(directory: Path, entry: str) -> str:
    """The scenario of one entry into a project; its name."""
    path = directory / "scenarios" / f"{entry}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(SCENARIO.format(entry=entry), encoding="utf-8")
    return entry
