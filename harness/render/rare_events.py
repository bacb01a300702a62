"""How probable it is that runs show a fault that is not in every step."""

from harness.bits.text import count

ONE_IN = 50
"""Steps of which one has the fault."""


def rare_events_line(num_steps: int, num_runs: int) -> str:
    """Return the sentence: the chance that any step of any run has it is 1 - (1 - p)^(steps * runs)."""
    chance = 1.0 - (1.0 - 1.0 / ONE_IN) ** (num_steps * num_runs)
    runs = f"{num_runs} runs of {count(num_steps, 'step')}"
    return f"a fault in 1 of {ONE_IN} steps is seen by {runs} with a chance of {100 * chance:.0f} %"
