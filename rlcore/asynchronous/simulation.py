"""Speed of an asynchronous run of GRPO on a virtual clock, from durations that a real run measured.

    close batches ─▶ launch groups ─▶ start rollouts ─▶ move the clock to the next end, of a rollout or training step
          ▲                                                                │
          └────────────────────────────────────────────────────────────────┘

- **strict**: step s trains groups s * P to s * P + P - 1, which start as soon as version max(0, s - A) is there. P is
  `groups_per_step`, A is `ahead`.
- **free**: a group takes the newest version if its nominal step is at most A ahead of it. A step trains the first P
  groups that are done. When a batch is closed, groups that are then more than `max_off_policy_steps` old are discarded
  whole, and give up their places. No group is launched with a version of that age.

As in `infer`, a sampler holds one version in both modes: it ends its old rollouts before it takes the next version. As
in `orchestrator`, all rollouts of group g go to sampler g % num_samplers, as soon as the group is launched.

Limits of the model:
- A rollout's duration does not depend on how many rollouts run beside it. One among many takes longer than alone, so
  an answer holds at the concurrency at which the durations were measured.
- A duration is the time for which a rollout holds a place. If time that it waited for a place is part of it, that time
  counts twice, because the simulation adds it.
- A training step always takes the same time, and a version is in all samplers as soon as it is published.

`random.Random(seed)` draws the durations: nothing of a run depends on them. Group g has the same durations in every
simulation of one seed, whatever the settings.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, cycle, product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Literal, get_args

from harness.bits.files import parse_object, read_regular
from rlcore.asynchronous.directory import METRICS_LOG, ROLLOUTS_LOG
from rlcore.errors import InvalidValueError

Mode = Literal["strict", "free"]
SIZES = ("places", "groups_per_step", "group_size")


@dataclass(frozen=True, slots=True)
class Measured:
    """Durations and sizes of a run."""

    rollout_s: Sequence[float]
    """Seconds for which each rollout held a place of a sampler; above 0."""
    places: int
    """Rollouts that a sampler decodes together."""
    train_s: float
    """Seconds of a training step and of publishing its weights."""
    groups_per_step: int
    group_size: int


@dataclass(frozen=True, slots=True)
class Expected:
    """Speed of a run, and how busy its machines are."""

    step_s: float
    """Seconds per step, including the first steps, in which the trainer waits for its first batch."""
    trainer: float
    """Share of the time in which the trainer trains."""
    samplers: float
    """Share of the samplers' places that hold a rollout, averaged over time."""
    discarded: float
    """Share of the launched groups that are discarded."""
    mean_lag: float
    """Mean of off_policy_steps over trained groups: number of the step minus version."""
    most_lag: int
    speedup: float
    """Over the same machines in turns (A = 0): they sample the groups of a step, then the trainer trains them."""


@dataclass(slots=True, eq=False)
class _Group:
    sampler: int
    version: int
    num_left: int
    """Rollouts that have not ended."""


def simulate(
    measured: Measured,
    *,
    mode: Mode,
    ahead: int,
    num_samplers: int,
    max_off_policy_steps: int = 8,
    num_steps: int = 120,
    seed: int = 0,
    holds_one_version: bool = True,
) -> Expected:
    """Return the speed of a run of `num_steps` steps with one trainer.

    Without `holds_one_version` a sampler runs rollouts of several versions together, which ours does not do: the
    difference is the cost of that limit. Raises InvalidValueError for an unknown mode or a number that is too small.
    """
    counts = num_samplers, num_steps, len(measured.rollout_s)
    if mode not in get_args(Mode) or min(ahead, max_off_policy_steps, min(counts) - 1) < 0:
        found = f"{mode=}, {ahead=}, {max_off_policy_steps=}, {num_samplers=}, {num_steps=}, {counts[-1]} rollouts"
        raise InvalidValueError(found, legal="strict or free; ahead and max_off_policy_steps from 0, the others from 1")
    draw, per_step, is_strict = Random(seed), measured.groups_per_step, mode == "strict"
    oldest = -num_steps if is_strict else -max_off_policy_steps  # version that is not too old
    waiting: list[list[tuple[_Group, float]]] = [[] for _ in range(num_samplers)]  # rollouts without a place
    running, loaded = [0] * num_samplers, [0] * num_samplers  # of each sampler: its rollouts, its version
    flying: list[_Group] = []  # launched, and in no batch yet; in the order of launches, which is that of versions
    ends: list[tuple[float, int, _Group | None]] = []  # heap: of rollouts; None for the end of a training step
    now_s = busy_s = trained_s = 0.0
    version = num_closed = num_discarded = 0
    routes, order, lags = cycle(range(num_samplers)), count(), list[int]()
    while version < num_steps:
        batch = [group for group in flying if is_strict or not group.num_left][:per_step]
        if len(batch) == per_step and not any(group.num_left for group in batch):  # close a batch
            lags += [num_closed - group.version for group in batch]
            num_closed, oldest = num_closed + 1, oldest + 1
            trained_s = max(now_s, trained_s) + measured.train_s
            heapq.heappush(ends, (trained_s, next(order), None))
            too_old = [group for group in flying if group.version < oldest and group not in batch]
            for group in too_old:
                running[group.sampler] -= sum(each is group for _, _, each in ends)
            flying = [group for group in flying if group not in batch and group not in too_old]
            num_discarded += len(too_old)
            continue
        while (nominal := num_closed + len(flying) // per_step) < num_steps and version >= max(nominal - ahead, oldest):
            # Launch a group. In mode strict, version is max(0, nominal - ahead): groups start as soon as it is there.
            flying.append(group := _Group(next(routes), version, measured.group_size))
            waiting[group.sampler] += [(group, draw.choice(measured.rollout_s)) for _ in range(group.num_left)]
        for sampler in range(num_samplers):  # start rollouts
            while waiting[sampler] and running[sampler] < measured.places:
                group, seconds = waiting[sampler][0]
                if holds_one_version and running[sampler] and loaded[sampler] != group.version:
                    break
                waiting[sampler].pop(0)
                if group.version >= oldest:  # it was not discarded
                    heapq.heappush(ends, (now_s + seconds, next(order), group))
                    running[sampler], loaded[sampler] = running[sampler] + 1, group.version
        end_s, _, ended = heapq.heappop(ends)  # move the clock
        now_s, busy_s = end_s, busy_s + (end_s - now_s) * sum(running)
        if ended is None:
            version += 1
        elif ended.version >= oldest:
            ended.num_left -= 1
            running[ended.sampler] -= 1
    step_s, discarded = now_s / num_steps, num_discarded / (num_discarded + num_steps * per_step)
    trainer, samplers = measured.train_s / step_s, busy_s / (now_s * measured.places * num_samplers)
    same: dict[str, Any] = {"num_samplers": num_samplers, "num_steps": num_steps, "seed": seed}
    in_turns_s = simulate(measured, mode="strict", ahead=0, **same).step_s if ahead else step_s
    return Expected(step_s, trainer, samplers, discarded, fmean(lags), max(lags), in_turns_s / step_s)


def table(measured: Measured, ahead: Sequence[int], samplers: Sequence[int], **options: Any) -> list[str]:
    """Return lines for a terminal, a row for each mode, A and number of samplers; options are those of `simulate`."""
    lines = ["mode     A  samplers  steps/s  speedup  trainer busy  samplers busy  discarded  mean lag  most lag"]
    for mode, a, num_samplers in product(get_args(Mode), ahead, samplers):
        found = simulate(measured, mode=mode, ahead=a, num_samplers=num_samplers, **options)
        speed = f"{mode:<6}  {a:>2}  {num_samplers:>8}  {1 / found.step_s:>7.3g}  {found.speedup:>6.2f}x"
        shares = f"{found.trainer:>12.0%}  {found.samplers:>13.0%}  {found.discarded:>9.1%}"
        lines.append(f"{speed}  {shares}  {found.mean_lag:>8.1f}  {found.most_lag:>8}")
    return lines


def measured_run(directory: Path) -> Measured:
    """Read the durations of a run, without its first step, which waits for processes to start, if it has another one.

    `metrics.jsonl` is the trainer's, whose "seconds/train" include publishing. `rollouts.jsonl` is the orchestrator's,
    whose first line has the sizes. Of a step that was made again after a restart, the last line counts. Raises
    InvalidValueError.
    """
    metrics = _lines(directory / METRICS_LOG, "step", "seconds/train")
    rollouts = _lines(directory / ROLLOUTS_LOG, "step", "rollout_s", *SIZES)
    train_s = list({line["step"]: line["seconds/train"] for line in metrics}.values())
    by_step = list({line["step"]: line["rollout_s"] for line in rollouts if line["rollout_s"]}.values())
    rollout_s = [seconds for step in by_step[1:] or by_step for seconds in step]
    sizes = {name: rollouts[0][name] for name in SIZES}
    return Measured(rollout_s=rollout_s, train_s=fmean(train_s[1:] or train_s), **sizes)


def _lines(file: Path, *keys: str) -> list[dict[str, Any]]:
    """Read the objects of a file, of which there is one at least; the first one has these keys."""
    try:
        found = [parse_object(line) for line in read_regular(file).splitlines()]
        if missing := [key for key in keys if key not in (found or [{}])[0]]:
            raise ValueError(f"its first line has no {', '.join(missing)}")
        return found
    except (OSError, ValueError) as error:
        remedy = "name the directory of a run that has finished a step"
        raise InvalidValueError(f"{file} cannot be read: {error}", remedy=remedy) from error
