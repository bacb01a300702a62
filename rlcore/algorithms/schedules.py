"""Learning rates, temperatures and noise as pure functions of the step.

A schedule with a state of its own gives other bits after a resume than before it (a recursive cosine differs from its
closed form), so nothing here remembers anything. Steps count from 0. No step is taken at a learning rate of 0: the
first of `num_warmup_steps` has 1 / num_warmup_steps of the peak, and the end of a decay is reached after the last step.
"""

import math

from rlcore.errors import InvalidValueError


def constant_lr(step: int, *, peak: float, num_warmup_steps: int = 0) -> float:
    """`peak` after a linear warm-up."""
    return peak * (step + 1) / num_warmup_steps if step < num_warmup_steps else peak


def linear_lr(step: int, *, peak: float, num_steps: int, num_warmup_steps: int = 0, final_ratio: float = 0.0) -> float:
    """From `peak` to peak * final_ratio in a line, after a warm-up, and there from num_steps on.

    Raises InvalidValueError.
    """
    left = 1.0 - _progress(step, num_warmup_steps, num_steps)
    return constant_lr(step, peak=peak, num_warmup_steps=num_warmup_steps) * (final_ratio + (1 - final_ratio) * left)


def cosine_lr(step: int, *, peak: float, num_steps: int, num_warmup_steps: int = 0, final_ratio: float = 0.0) -> float:
    """From `peak` to peak * final_ratio in half a cosine, after a warm-up, and there from num_steps on.

    Raises InvalidValueError. SGDR (arXiv:1608.03983), equation 5, without restarts.
    """
    left = 0.5 * (1.0 + math.cos(math.pi * _progress(step, num_warmup_steps, num_steps)))
    return constant_lr(step, peak=peak, num_warmup_steps=num_warmup_steps) * (final_ratio + (1 - final_ratio) * left)


def temperature(step: int, *, shape: str, start: float, end: float, num_steps: int) -> float:
    """From `start` at step 0 to `end` at the last step, in a line ("linear") or half a cosine ("cosine")."""
    progress = min(max(step, 0), num_steps - 1) / max(num_steps - 1, 1)
    return start + (end - start) * (progress if shape == "linear" else 0.5 * (1.0 - math.cos(math.pi * progress)))


def noise_sigma(step: int, *, start: float, end: float, num_stages: int, num_steps: int) -> float:
    """Standard deviation of noise on norm weights: 0 in the first of equal stages, then `start` to `end` by one factor.

    QeRL (arXiv:2510.11696).
    """
    stage = min(step * num_stages // num_steps, num_stages - 1)
    return start * (end / start) ** ((stage - 1) / max(num_stages - 2, 1)) if stage else 0.0


def _progress(step: int, first: int, num_steps: int) -> float:
    """How much of a decay from step `first` to `num_steps` is done, 0 to 1; raises InvalidValueError."""
    if first > num_steps:
        raise InvalidValueError(f"num_warmup_steps is {first}", legal=f"at most num_steps, {num_steps}")
    return 1.0 if step >= num_steps else max(step - first, 0) / (num_steps - first or 1)
