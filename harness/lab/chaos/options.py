"""Options of `rlharness chaos` as a person typed them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from harness.lab.experiments.scenario_options import ScenarioOptions

DEFAULT_COUNT = 20
DEFAULT_REPEATS = 3


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What is perturbed, how often, and for how long."""

    scenario: str | None = None
    """Scenario as it was typed; None for the command after `--`."""
    scenario_options: ScenarioOptions = field(default_factory=ScenarioOptions)
    num_steps: int | None = None
    """Steps that are run, from the first on; None for all."""
    of_factors: Mapping[str, Any] = field(default_factory=dict)
    """Of --count, --seed, --factors, --repeats and --only those that were given."""
    vary: tuple[str, ...] = ()
    """NAME=BASE,OTHER of --vary, which replaces the factors."""
    has_bits: bool = False
    """Whether no bit may differ, with --vary."""
    max_s: float = inf
    """Seconds after which no run begins."""
    timeout_s: float = inf
    """Limit on each run."""
    out: str | None = None
