"""Numbers of a step, merged over ranks and microbatches, and those of its completions. No torch.

Sums are correctly rounded (math.fsum), so that no metric depends, by a bit, on the order of what is added. NaN is a
value like others: it travels, and is never left out.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Literal, get_args

from rlcore.errors import InvalidValueError

Metrics = Mapping[str, float]
"""By name; a whole number where it is a count."""
How = Literal["mean", "sum", "min", "max"]


def mean(values: Iterable[float]) -> float:
    """Of at least one value, whatever their order; raises InvalidValueError for none."""
    listed = list(values)
    if not listed:
        raise InvalidValueError("a mean of no value", legal="1 or more")
    try:
        return math.fsum(listed) / len(listed)
    except (OverflowError, ValueError):  # the first few are too large together, or infinite both ways
        return _weighted_mean(listed, [1] * len(listed))


def merge(
    by_rank: Sequence[Metrics], how: Mapping[str, How], weights: Mapping[str, str] | None = None
) -> dict[str, float]:
    """One number for each name of `how`, in its order, from those of every rank, whatever the order of the ranks.

    `weights` names, for a mean, the metric that says how much a rank's own mean counts: {"loss": "num_tokens"}; without
    it all ranks count alike. A rank of weight 0 does not count, its NaN neither; where none counts the mean is NaN.

    Raises InvalidValueError for no rank, and, naming rank and metric, where a rank lacks a metric of `how`, has one
    that is not there, has one that is no number or not of rank 0's type, or a weight that is negative or not finite.
    """
    weights = weights or {}
    _check_merge(by_rank, how, weights)
    merged: dict[str, float] = {}
    for name, way in how.items():
        values = [metrics[name] for metrics in by_rank]
        match way:
            case "mean":
                counts = [metrics[weights[name]] if name in weights else 1 for metrics in by_rank]
                merged[name] = _weighted_mean(values, counts)
            case "sum":
                merged[name] = _sum(values)
            case "min" | "max":
                merged[name] = _extreme(values, way)
    return merged


def of_completions(
    num_tokens: Sequence[int],
    is_truncated: Sequence[bool],
    rewards: Sequence[float | None],
    by_function: Mapping[str, Sequence[float | None]],
) -> dict[str, float]:
    """Metrics of a table of completions: each argument has a value per completion, None for one without a reward.

    `truncated` is a share, `unjudged` a count; `reward_std` is divided by the number of rewards (ddof 0). A mean
    over no value is NaN. Raises InvalidValueError for no completion, and where arguments are not of one length.
    """
    counts = {"is_truncated": len(is_truncated), "rewards": len(rewards)}
    counts |= {f"rewards of {name!r}": len(values) for name, values in by_function.items()}
    for name, num_values in counts.items():
        if num_values != len(num_tokens):
            raise InvalidValueError(f"{num_values} {name}", legal=f"{len(num_tokens)}, one a completion")
    judged = [reward for reward in rewards if reward is not None]
    return {
        "completion_length": mean(num_tokens),
        "completion_length_min": min(num_tokens),
        "completion_length_max": max(num_tokens),
        "truncated": mean(is_truncated),
        "unjudged": len(rewards) - len(judged),
        "reward_mean": _mean_of_compared(rewards),
        "reward_std": statistics.pstdev(judged) if judged and all(map(math.isfinite, judged)) else math.nan,
        **{f"rewards/{name}": _mean_of_compared(values) for name, values in by_function.items()},
    }


def _mean_of_compared(rewards: Sequence[float | None]) -> float:
    judged = [reward for reward in rewards if reward is not None]
    return mean(judged) if judged else math.nan


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """NaN where nothing has a weight."""
    counted = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
    if not counted:
        return math.nan
    if not all(math.isfinite(value) for value, _ in counted):
        return _sum([value for value, _ in counted])
    products = [value * weight for value, weight in counted]
    try:
        if all(map(math.isfinite, products)):
            return math.fsum(products) / math.fsum(weight for _, weight in counted)
    except OverflowError:
        pass  # fsum gives up where a sum of the first few is too large, which would depend on the order
    total = sum(Fraction(value) * Fraction(weight) for value, weight in counted)
    return float(total / sum(Fraction(weight) for _, weight in counted))


def _sum(values: Sequence[float]) -> float:
    """Whole numbers give a whole number; what is too large is infinite."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    infinite = {value for value in values if not math.isfinite(value)}
    if infinite:
        return infinite.pop() if infinite in ({math.inf}, {-math.inf}) else math.nan
    try:
        return math.fsum(values)
    except OverflowError:
        total = sum(map(Fraction, values))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _extreme(values: Sequence[float], way: Literal["min", "max"]) -> float:
    """NaN where there is one; -0.0 is below 0.0."""
    if any(math.isnan(value) for value in values):
        return math.nan
    ordered = sorted(values, key=lambda value: (value, math.copysign(1.0, value)))
    return ordered[0] if way == "min" else ordered[-1]


def _check_merge(by_rank: Sequence[Metrics], how: Mapping[str, How], weights: Mapping[str, str]) -> None:
    if not by_rank:
        raise InvalidValueError("metrics of no rank", legal="1 or more")
    for name, way in how.items():
        if way not in get_args(How):
            raise InvalidValueError(f"metric {name!r} merged by {way!r}", legal=", ".join(get_args(How)))
    for name, weight in weights.items():
        if how.get(name) != "mean" or weight not in how:
            raise InvalidValueError(
                f"metric {name!r} weighted by {weight!r}", legal="a mean, by another of the metrics"
            )
    for rank, metrics in enumerate(by_rank):
        for name in [*how, *metrics]:
            if name not in metrics:
                raise InvalidValueError(f"rank {rank} lacks the metric {name!r}", legal=", ".join(how))
            if name not in how:
                raise InvalidValueError(f"rank {rank} has an unexpected metric {name!r}", legal=", ".join(how))
            value, kind = metrics[name], type(by_rank[0][name])
            if type(value) not in (int, float) or type(value) is not kind:
                raise InvalidValueError(
                    f"metric {name!r} of rank {rank} is the {type(value).__name__} {value!r}",
                    legal=kind.__name__ if kind in (int, float) else "an int, or a float, on every rank",
                )
            if name in weights.values() and not 0 <= value < math.inf:
                raise InvalidValueError(f"the weight {name!r} of rank {rank} is {value!r}", legal="0 or more, finite")
