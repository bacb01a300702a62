"""Options of `rlharness chaos` as a person typed them."""

from dataclasses import dataclass, field
from math import inf

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
    factors: str | None = None
    """NAME,NAME: the factors that are perturbed; None for all."""
    only: tuple[str, ...] = ()
    """FACTOR=VALUE: the one perturbation that is run; empty where they are drawn."""
    num_probes: int = DEFAULT_COUNT
    seed: int = 0
    num_repeats: int = DEFAULT_REPEATS
    """Most runs of one perturbation while a cause is looked for."""
    max_s: float = inf
    """Seconds after which no run begins."""
    timeout_s: float = inf
    """Limit on each run."""
    out: str | None = None
