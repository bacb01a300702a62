"""A straight run beside one that is interrupted and resumed: `rlharness replay --resume-at K --resume-command C`.

    copy 1 of the working directory:  run 1, straight
    copy 2:                           run 2, killed after K steps, before the next update ─▶ run 3, resumed

Each side runs in a copy of the working directory of its own: the resumed run must not find checkpoints of the straight
one, and nothing that the user has there changes. Both copies are removed at the end. (A placeholder for an output
directory in the command would need no copy, but programs that name their checkpoints would overwrite the user's.)
A program that saves outside of its copy is ended before it does. If the killed run has saved nothing, it is run once
more in a fresh copy and ended by SIGTERM.

    place: weights, optimizer state, batch and last checkpoint vote on the step at which it resumed
    first resumed step:  weights ─▶ optimizer state ─▶ other modules ─▶ frozen weights ─▶ generators
    every resumed step:  settings, batch; while nothing differs: loss, gradients, other modules, checkpoints
    at the end:          other modules, number of steps; variables that are back at their value of step 0 are hints

Each difference is looked up among all steps of the straight run. Lines are those of `ResumptionRecorder`.
"""

import json
import os
import shlex
import shutil
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from math import frexp, isnan
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import MALFORMED, read_text
from harness.bits.text import count, path_text
from harness.lab.experiment.launcher import Launcher, Run, check_program
from harness.lab.replay.replay import ReplayOptions, ReplayPlan
from harness.process.invocation import Invocation
from harness.process.program_output import output_tail
from harness.process.run_directory import HOME
from harness.process.scratch import remove_tree
from harness.recording.run_spec import RunSpec

Line = Mapping[str, Any]
Held = Mapping[tuple[str, str], Any]
"""(kind, name) -> digest or number: "weights" and "modules" beside the keys of an optimizer's state."""
MAX_NAMES = 3
NEAR = 0.25
"""A number is back at step 0's if it is so much nearer to it than to that of the straight run."""
WORDS = {
    "modules": "buffers and weights outside the optimizer",
    "exp_avg": "moments",
    "exp_avg_sq": "moments",
    "momentum_buffer": "momentum",
    "step": "step count",
}
"""Keys of optimizers' states, as a person calls them."""


class LossCode(Enum):
    """Kinds of loss, and their sentences. Scripts rely on the names: none changes its meaning."""

    LOST = "{what} of {names} are lost: they start from nothing"
    NUMBER = "{what} of {names} is {other}"
    NOT_RESTORED = "{what} are those of step 0, not restored: {names}"
    COPIED = "{what} are those of others: {names}"
    OF_STEP = "{what} are those before step {other}: {names}"
    ROUNDED = "{what} are rounded to {other}: {names}"
    UNKNOWN = "{what} are those of no step: {names}"
    REORDERED = "the optimizer holds its weights in a different order: {names} against {others}"
    FROZEN = "frozen weights are trained, or trained ones frozen: {names}"
    GENERATOR = "{name}'s generator {where}{doubt}"
    SETTING = "{name} is {b:.6g} against {a:.6g}{origin}"
    DATA_START_OVER = "the batch is that of step 0: the data start over"
    DATA_SKIPPED = "the batch is that of step {step}: {num} skipped"
    DATA_REPEATED = "the batch is that of step {step}: {num} repeated"
    DATA_OF_STEP = "the batch is that of step {step}: the data have a different order"
    DATA_PERMUTED = "the samples are those of steps {names}{note}"
    DATA_REORDERED = "the same samples until the end, in a different order"
    DATA_VALUES = (
        "{num} of {total} samples have different values, though the loader asked for the same indices: workers,"
        " augmentation or sampling draw other numbers"
    )
    DATA_FOREIGN = "{num} of {total} samples were in no batch of the straight run"
    DATA_DIFFERENT = "the inputs differ"
    SAMPLES = "until the end, {shown}"
    WINDOW = "the first resumed step is made of {num} of {total} batches: the gradients of the first {rest} are lost"
    SCALE = "the loss is {ratio:g} times the straight run's, and gradients are equal: the gradient scaler was lost"
    LOSS = "with equal weights and inputs, {shown}{where}"
    CHECKPOINT = "the checkpoint written before this step differs, though all steps are equal: {names}"
    NUM_STEPS = "{a} steps straight, {b} with the resume"


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing that the resumed run has not as the straight run had it."""

    code: LossCode
    step: int
    """At which it shows first, as the straight run counts."""
    values: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0
    """The first one that has it."""

    @property
    def sentence(self) -> str:
        """The loss in words."""
        return (f"rank {self.rank}: " if self.rank else "") + self.code.value.format(**self.values)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a resumed run is to the straight one."""

    step: int
    """At which it resumed, as the straight run counts."""
    how: str
    """What of it says so."""
    num_steps: int
    """Steps that were compared."""
    losses: tuple[Loss, ...]
    """In causal order."""
    hints: tuple[str, ...]
    """Variables that are back at their value of step 0; others that differ only beside a loss."""


@dataclass(frozen=True, slots=True)
class Record:
    """The lines of one run."""

    steps: Sequence[Line]
    tail: Line | None = None
    """What was left when the process ended; None if it did not end in order."""
    others: Sequence["Record"] = ()
    """Of the other ranks, in order."""
    files: Sequence[str] = ()
    """Names of those that the run left; known of a straight run only."""

    @property
    def ranks(self) -> Sequence["Record"]:
        """Return this and the others."""
        return (self, *self.others)

    def label(self, at: int) -> int:
        """Return the number of a step among those of its optimizer."""
        number = self.steps[at]["optimizer"] if at < len(self.steps) else 0
        return sum(line["optimizer"] == number for line in self.steps[:at])

    @property
    def saves(self) -> tuple[int, ...]:
        """Numbers of lines before which checkpoints were written."""
        lines = [*self.steps, *([self.tail] if self.tail else [])]
        return tuple(at for at, line in enumerate(lines) if line["saves"])


def first_unequal(straight: Record, again: Record) -> int | None:
    """Return the first step before which the weights of two straight runs differ."""
    lines = [*again.steps, *([again.tail] if again.tail and "weights" in again.tail else [])]
    pairs = enumerate(zip(straight.steps, lines, strict=False))
    return next((straight.label(at) for at, (a, b) in pairs if a["weights"] != b["weights"]), None)


def unrepeated(straight: Record, again: Record) -> frozenset[str]:
    """Return names of variables, and of values in checkpoints, that two straight runs do not share: times, say."""
    lines = zip(straight.steps, [*again.steps, *([again.tail] if again.tail else [])], strict=False)
    pairs = [(x, y) for a, b in lines for x, y in zip(_kept(a), _kept(b), strict=False)]
    return frozenset(name for x, y in pairs for name in x if name in y and x[name] != y[name])


def compare_resumed(
    straight: Record, resumed: Record, expected: int | None, ignored: frozenset[str] = frozenset()
) -> Resumption | None:
    """Return what the resumed run lost; None if nothing says where it resumed.

    `expected` is the number of steps before the last checkpoint, `ignored` what `unrepeated` has found.
    """
    has_inputs = any(call["inputs"] for line in straight.steps for call in line["calls"])
    key = "calls" if has_inputs else "batches"  # of data that enter no module
    names = {line["optimizer"]: line["names"] for line in reversed(straight.steps)}
    resumed = replace(resumed, steps=[_in_order(line, names.get(line["optimizer"], ())) for line in resumed.steps])
    at, how = _place(straight, resumed.steps[0], expected, key)
    return None if at is None else _Comparison(straight, resumed, at, key, ignored).result(how)


def _in_order(line: Line, want: Sequence[str]) -> Line:
    """The line with its weights in the straight run's order; by their places if it holds different names."""
    have = line["names"]
    if len(want) != len(have) or {*want} != {*have} or len({*want}) < len(want) or list(want) == have:
        return {**line, "names": want} if len(want) == len(have) else line
    moved = {key: [line[key][have.index(name)] for name in want] for key in ("weights", "gradients", "state", "trains")}
    return {**line, **moved, "names": want, "had": have}


def _place(straight: Record, first: Line, expected: int | None, key: str) -> tuple[int | None, str]:
    """(the step of the straight run at which the resumed one begins, what says so)."""
    weights, lines = first["weights"], straight.steps
    like = [
        at
        for at, line in enumerate(lines)
        if line["optimizer"] == first["optimizer"] and len(line["weights"]) == len(weights)
    ]

    def nearest(found: Sequence[int]) -> int | None:
        return min(found, key=lambda at: abs(at - (expected or 0))) if found else None

    moving = [k for k in range(len(weights)) if len({lines[at]["weights"][k] for at in like}) > 1]
    equal = {at: sum(weights[k] == lines[at]["weights"][k] for k in moving) for at in like}
    most = max(equal.values(), default=0)
    ways = {
        "its weights are those before this step": [at for at in like if lines[at]["weights"] == weights],
        **{
            f"its weights are those before this step, rounded to {kind}": [
                at for at in like if lines[at]["rounded"][kind] == weights
            ]
            for kind in first["rounded"]
        },
        f"{most} of its {len(moving)} weights are those before this step": [at for at in like if 0 < equal[at] == most],
    }
    how, by_weights = next(((how, nearest(found)) for how, found in ways.items() if found), ("", None))
    states = [at for at in like if any(first["state"]) and lines[at]["state"] == first["state"]]
    batches = [at for at in like if first[key] and _inputs(lines[at], key) == _inputs(first, key)]
    batch = batches[0] if len(batches) == 1 else None
    votes: dict[int, float] = defaultdict(float)
    for at, weight in ((by_weights, 1.5), (nearest(states), 1.0), (batch, 1.0), (expected, 0.6)):
        if at in like and at is not None:
            votes[at] += weight
    chosen = max(votes, key=lambda at: (votes[at], at == by_weights), default=None)
    if chosen != by_weights:
        others = "no step" if by_weights is None else f"step {straight.label(by_weights)}"
        how = f"its optimizer state, batch or checkpoint say so; its weights are those of {others}"
    return chosen, how


class _Comparison:
    def __init__(self, straight: Record, resumed: Record, at: int, key: str, ignored: frozenset[str]) -> None:
        self._straight, self._at, self._key = straight, at, key
        self._a, self._b, self._tails = straight.steps, resumed.steps, (straight.tail, resumed.tail)
        self._ignored = ignored
        self._losses: list[Loss] = []

    def result(self, how: str) -> Resumption:
        a, b = self._a[self._at], self._b[0]
        pairs = list(zip(self._a[self._at :], self._b, strict=False))
        firsts = {y["optimizer"]: (x, y) for x, y in reversed(pairs) if x["optimizer"] == y["optimizer"]}
        for _, (x, y) in sorted(firsts.items()):
            if "had" in y:
                self._add(LossCode.REORDERED, names=some(y["had"]), others=some(y["names"]))
            owner = f"{y['kind']}{self._which(y)}"
            self._compare_held(_weights(x), _weights(y), self._at)
            self._compare_held(_states(x), _states(y), self._at, owner)
        if len(b[self._key]) >= len(a[self._key]) or not b[self._key]:  # not within a window
            self._compare_modules(a, b, self._at)
        if a["trains"] != b["trains"]:
            named = zip(b["names"], a["trains"], b["trains"], strict=False)
            self._add(LossCode.FROZEN, names=some(name for name, x, y in named if x != y))
        self._compare_steps(pairs)
        self._compare_generators(a, b)
        self._compare_ends()
        losses, hints = tuple(self._losses), tuple(self._hints(a, b))
        return Resumption(self._straight.label(self._at), how, len(pairs), losses, hints)

    def _which(self, line: Line) -> str:
        """The number of an optimizer, from 0 on, if there are several."""
        return f" (optimizer {line['optimizer']})" if any(each["optimizer"] for each in self._a) else ""

    def _add(self, code: LossCode, at: int | None = None, **values: Any) -> None:
        self._losses.append(Loss(code, self._straight.label(self._at if at is None else at), values))

    # -------------------------------------------------------------------------------------------- first resumed step

    def _compare_modules(self, a: Line, b: Line, at: int) -> None:
        """Compare buffers, frozen weights, averaged and target networks, unless another module holds the value.

        Modules alike are numbered by what they hold, and a resume may make more of them.
        """
        there = {(key[1].rpartition(".")[2], digest) for key, digest in _modules(b).items() if "#" in key[1]}
        old = {key: digest for key, digest in _modules(a).items() if key[1] in b["held"]}
        old = {key: digest for key, digest in old.items() if (key[1].rpartition(".")[2], digest) not in there}
        self._compare_held(old, {key: digest for key, digest in _modules(b).items() if key in old}, at)

    def _compare_held(self, a: Held, b: Held, at: int, owner: str = "") -> None:
        """Add what differs of what a process holds before a step, by where the resumed run's values come from."""
        here = self._a[min(at, len(self._a) - 1)]
        names_of = {value: name for held in (_states, _modules, _weights) for (_, name), value in held(here).items()}
        kinds = sorted(here["rounded"].items(), key=lambda each: len({*each[1]} & {*b.values()}))  # some fit several
        rounded = {digest: kind for kind, digests in kinds for digest in digests}
        found: dict[tuple[LossCode, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        unequal = [key for key in {**a, **b} if a.get(key) != b.get(key)]
        history = [_states(line) | _modules(line) | _weights(line) for line in self._a] if unequal else []
        for kind, name in unequal:
            old, new = a.get((kind, name)), b.get((kind, name))
            steps = [n for n, held in enumerate(history) if held.get((kind, name)) == new]
            code, other = LossCode.UNKNOWN, ""
            if _is_nothing(new):
                code = LossCode.LOST
            elif isinstance(new, float) and isinstance(old, float):
                code, other = LossCode.NUMBER, f"{new:g} against {old:g}"
            elif steps and self._straight.label(steps[0]) == 0:
                code = LossCode.NOT_RESTORED
            elif new in names_of:
                code, other = LossCode.COPIED, names_of[new]
            elif steps:
                code, other = LossCode.OF_STEP, str(self._straight.label(steps[-1]))
            elif new in rounded:
                code, other = LossCode.ROUNDED, rounded[new]
            if not (_is_nothing(new) and _is_nothing(old)):
                found[code, "" if code is LossCode.COPIED else other][kind].append(
                    f"{name} has that of {other}" if code is LossCode.COPIED else name
                )
        for (code, other), by_kind in found.items():
            for names in {tuple(each): None for each in by_kind.values()}:
                held = [kind for kind, each in by_kind.items() if tuple(each) == names]
                total = 0 if held[0] == "modules" or code is LossCode.COPIED else len(here["names"])
                self._add(code, at, what=_words(held, owner), names=some(names, total), other=other)

    def _compare_generators(self, a: Line, b: Line) -> None:
        """Add where generators stand that the straight run draws from, if the data or a loss differ: the likely cause.

        After the data if the batch or the place is not one that lost generators have: then the data may be the cause.
        """
        codes = {loss.code for loss in self._losses}
        known = {LossCode.DATA_START_OVER, LossCode.DATA_SKIPPED, LossCode.DATA_REPEATED, LossCode.DATA_OF_STEP}
        has_data = any(code.name.startswith("DATA") for code in codes)
        if LossCode.LOSS not in codes and not has_data:
            return
        num = min(len(a["calls"]), len(b["calls"]))
        if num and len(a["calls"]) != len(b["calls"]) and _inputs(a, "calls")[-num:] == _inputs(b, "calls")[-num:]:
            a, b = ({**line, "random": line["calls"][-num]["random"], "seed": None} for line in (a, b))
        for name, state in sorted(b["random"].items(), reverse=True):
            if state == a["random"].get(name) or len({line["random"].get(name) for line in self._a[self._at :]}) < 2:
                continue
            step = next((at for at, line in enumerate(self._a) if line["random"].get(name) == state), None)
            where = "stands where it stood at no step"
            if step is not None:
                where = f"was set back: it stands where it stood at step {self._straight.label(step)}"
            elif name == "torch" and b["seed"] is not None:
                where = f"was set back: it stands where manual_seed({b['seed']}) puts it"
            is_effect = known & codes or (has_data and where.endswith("no step"))
            doubt = " (perhaps because the data stand elsewhere)" if is_effect else ""
            values = {"name": name, "where": where, "doubt": doubt}
            at = len(self._losses) if doubt else 0
            self._losses.insert(at, Loss(LossCode.GENERATOR, self._straight.label(self._at), values))

    # -------------------------------------------------------------------------------------------- every resumed step

    @property
    def _is_clean(self) -> bool:
        return {loss.code for loss in self._losses} <= {LossCode.SCALE}

    def _compare_steps(self, pairs: Sequence[tuple[Line, Line]]) -> None:
        known_rows = {row for line in self._a for row in _rows(line, self._key)}
        told: set[str] = set()
        for m, (a, b) in enumerate(pairs):
            at, rows = self._at + m, _rows(b, self._key)
            if a["settings"] != b["settings"] and (key := f"settings{self._which(b)}") not in told:
                told.add(key)
                self._compare_settings(a, b, at)
            is_told = self._is_clean or m == 0 or (rows and {*rows} <= known_rows)
            x, y = _inputs(a, self._key), _inputs(b, self._key)
            if is_told and "batch" not in told and x != y and not (m == 0 and x and y[-len(x) :] == x):
                told.add("batch")  # but for evaluations and skipped batches before the first step
                if m == 0 and y and x[-len(y) :] == y:
                    if a["gradients"] != b["gradients"]:
                        self._add(LossCode.WINDOW, at, num=len(y), total=len(x), rest=len(x) - len(y))
                else:
                    self._compare_data(m)
            if self._is_clean:
                self._compare_results(a, b, at, told)
            if self._is_clean and m:
                self._compare_modules(a, b, at)
            if self._is_clean:
                self._compare_saves(a, b, at)

    def _compare_settings(self, a: Line, b: Line, at: int) -> None:
        for group, (old, new) in enumerate(zip(a["settings"], b["settings"], strict=False)):
            for key in [key for key in old if key in new and old[key] != new[key]]:
                same = [(n, line["settings"]) for n, line in enumerate(self._a) if line["optimizer"] == a["optimizer"]]
                steps = [n for n, groups in same if group < len(groups) and groups[group].get(key) == new[key]]
                step = min(steps, key=lambda n: (n > 0, abs(n - at)), default=None)
                origin = "" if step is None else f", that of step {self._straight.label(step)}"
                name = key if len(a["settings"]) == 1 else f"{key} of group {group}"
                name += f" of {b['kind']}{self._which(b)}" if self._which(b) else ""
                x, y = (each[key][0] if isinstance(each[key], list) else each[key] for each in (old, new))
                self._add(LossCode.SETTING, at, name=name, a=x, b=y, origin=origin)

    def _compare_results(self, a: Line, b: Line, at: int, told: set[str]) -> None:
        """Compare losses and gradients of a step whose weights are equal."""
        gradients = zip(b["names"], a["gradients"], b["gradients"], strict=False)
        names = [name for name, x, y in gradients if x != y]
        losses = list(zip(a["losses"], b["losses"], strict=False)) if len(a["losses"]) == len(b["losses"]) else []
        ratios = {y / x for x, y in losses if x and not isnan(x)}
        if len(ratios) == 1 and ratios != {1.0} and not names and "scale" not in told:
            told.add("scale")
            (x, y), ratio = losses[0], ratios.pop()
            if abs(frexp(ratio)[0]) == 0.5:  # a power of two, as a gradient scaler has it
                self._add(LossCode.SCALE, at, ratio=ratio)
            else:
                shown = f"the loss is {y:.5g} against {x:.5g}"
                self._add(LossCode.LOSS, at, shown=shown, where=", though gradients are equal")
        if names and "batch" not in told:
            outputs = [[call.get("output") for call in line["calls"]] for line in (a, b)]
            where = " (modules' outputs are equal)" if outputs[0] == outputs[1] and a["calls"] else ""
            x, y = next(((x, y) for x, y in losses if x != y), (None, None))
            shown = f"the gradient of {some(names)} differs" if x is None else f"the loss is {y:.5g} against {x:.5g}"
            self._add(LossCode.LOSS, at, shown=shown, where=where)

    def _compare_saves(self, a: Line, b: Line, at: int) -> None:
        """Compare checkpoints that both runs wrote at the same step: averages, counters and positions in them."""
        saves = a["saves"], b["saves"]
        alike = ((x, y) for x in a["saves"] for y in b["saves"] if x.keys() == y.keys())  # a best one more, say
        for x, y in zip(*saves, strict=True) if len(saves[0]) == len(saves[1]) else alike:
            unequal = [name for name in x if name in y and x[name] != y[name] and name not in self._ignored]
            names = [name for name in unequal if _is_comparable(name, x[name])]
            if names and self._is_clean:
                self._add(LossCode.CHECKPOINT, at, names=some(name.removeprefix(".") for name in names))

    def _compare_ends(self) -> None:
        a, b = self._tails
        if not self._losses and a and b:
            self._compare_modules(a, b, len(self._a))
            self._compare_saves(a, b, len(self._a))
        if self._at + len(self._b) != len(self._a):
            num = self._straight.label(self._at) + sum(line["optimizer"] == 0 for line in self._b)
            self._add(LossCode.NUM_STEPS, len(self._a), a=self._straight.label(len(self._a)), b=num)

    def _compare_data(self, m: int) -> None:
        """Add what a batch of the resumed run is, by the digests of whole batches and of their rows."""
        key, at, b = self._key, self._at + m, self._b[m]
        seen = Counter(row for line in self._a for row in _rows(line, key))
        foreign = [row for row in _rows(b, key) if row not in seen]
        counts = {"num": len(foreign), "total": len(_rows(b, key))}
        asked_a, asked_b = (_rows(line, "batches") for line in (self._a[at], b))
        if foreign and asked_a and asked_b[-len(asked_a) :] == asked_a:
            self._add(LossCode.DATA_VALUES, at, **counts)
            return
        if foreign and asked_b:  # rows were changed after the loader: the indices that it asked for say more
            key, foreign = "batches", []
            seen = Counter(row for line in self._a for row in _rows(line, key))
        after = self._b[m + 1] if m + 1 < len(self._b) else None
        known = [n for n, line in enumerate(self._a) if _has_batch(b, line, key)]
        follow = [n for n in known if after and n + 1 < len(self._a) and _has_batch(after, self._a[n + 1], key)]
        known = follow or known
        rest = Counter(row for line in self._a[at:] for row in _rows(line, key))
        other = Counter(row for line in self._b[m:] for row in _rows(line, key))
        if known:
            self._add_known(min(known, key=lambda n: abs(n - at)), at, key)
        elif foreign or not seen:
            self._add(LossCode.DATA_FOREIGN if foreign else LossCode.DATA_DIFFERENT, at, **counts)
        elif rest == other:
            self._add(LossCode.DATA_REORDERED, at)
        else:
            found = sorted(
                {next(n for n, line in enumerate(self._a) if row in _rows(line, key)) for row in _rows(b, key)}
            )
            note = ": another permutation" if found[-1] - found[0] >= len(found) else ""
            self._add(LossCode.DATA_PERMUTED, at, names=some(str(self._straight.label(n)) for n in found), note=note)
        if not foreign and seen and rest != other:
            mine = Counter(row for line in [*self._a[: self._at], *self._b] for row in _rows(line, key))
            never, more = [row for row in seen if row not in mine], [row for row in seen if mine[row] > seen[row]]
            shown = [f"{len(never)} of {len(seen)} samples are never trained"] * bool(never)
            shown += [f"{len(more)} of {len(seen)} samples are trained more often"] * bool(more)
            if shown:
                self._add(LossCode.SAMPLES, at, shown=", and ".join(shown))

    def _add_known(self, number: int, at: int, key: str) -> None:
        """Add that a batch is that of another step. Data that come once were skipped or repeated."""
        rows = {*_rows(self._a[number], key)}
        is_once = sum(bool(rows & {*_rows(line, key)}) for line in self._a) <= 1
        code = LossCode.DATA_START_OVER if number == 0 else LossCode.DATA_OF_STEP
        if number and is_once:
            code = LossCode.DATA_SKIPPED if number > at else LossCode.DATA_REPEATED
        num = f"{abs(number - at)} batch{'es' if abs(number - at) > 1 else ''}"
        self._add(code, at, step=self._straight.label(number), num=num)

    def _hints(self, a: Line, b: Line) -> Iterator[str]:
        """Variables at the first resumed step: those that are back at step 0 first."""
        zero, old, new = (line["variables"] or {} for line in (self._a[0], a, b))
        found = []
        for name in [name for name in old.keys() & new.keys() - self._ignored if old[name] != new[name]]:
            x, y, z = zero.get(name), old[name], new[name]
            if type(y) is bool or not _is_comparable(name, y, "generator#"):
                continue
            is_back = z == x
            if not is_back and not name.endswith("]") and all(isinstance(each, int | float) for each in (x, y, z)):
                is_back = abs(z - x) <= NEAR * abs(z - y)
            if is_back or self._losses:
                text = f"{' against '.join(dict.fromkeys((_shown(z), _shown(y))))}{', as at step 0' * is_back}"
                if isinstance(z, str):
                    text = "back at its value of step 0" if is_back else "another one"
                found.append((not is_back, name, text))
        yield from (f"{name} is {text}" for _, name, text in sorted(found))


def _weights(line: Line) -> dict[tuple[str, str], Any]:
    return {("weights", name): digest for name, digest in zip(line["names"], line["weights"], strict=True)}


def _states(line: Line) -> dict[tuple[str, str], Any]:
    pairs = zip(line["names"], line["state"], strict=True)
    return {(key, name): value for name, state in pairs for key, value in sorted(state.items())}


def _modules(line: Line) -> dict[tuple[str, str], Any]:
    return {("modules", name): digest for name, digest in line["held"].items()}


def _inputs(line: Line, key: str) -> list[Any]:
    return [call["inputs"] for call in line[key]]


def _rows(line: Line, key: str) -> list[Any]:
    return [row for call in line[key] for row in call["rows"]]


def _has_batch(line: Line, other: Line, key: str) -> bool:
    """Return whether a step ends with the batches of another."""
    theirs = _inputs(other, key)
    return bool(theirs) and _inputs(line, key)[-len(theirs) :] == theirs


def _words(kinds: Sequence[str], owner: str) -> str:
    """weights; AdamW's moments and step count (exp_avg, exp_avg_sq, step)."""
    words = list(dict.fromkeys(WORDS.get(kind, kind) for kind in kinds))
    listed = " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
    shown = listed + (f" ({', '.join(kinds)})" if words != kinds and owner else "")
    return f"{owner}'s {shown}" if owner else shown


def _kept(line: Line) -> list[Mapping[str, Any]]:
    return [line.get("variables") or {}, *line["saves"]]


def _is_nothing(value: Any) -> bool:
    """Return whether an optimizer remembers nothing there, or zeros."""
    return value is None or value == 0 or (isinstance(value, str) and value.startswith("0#"))


def _is_comparable(name: str, value: Any, *prefixes: str) -> bool:
    """Return whether a value is compared: no texts, and nothing that measures time."""
    return (not isinstance(value, str) or value.startswith(("#", *prefixes))) and "time" not in name


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value.partition("#")[0] or "different"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def some(names: Iterable[str], total: int = 0) -> str:
    """Return the first names and the number of others; "all 4 weights" where there are as many as `total`."""
    names = list(dict.fromkeys(names))
    if len(names) == total > 1:
        return f"all {total} weights"
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


RECORDER = "harness.recording.resumption_recorder:ResumptionRecorder"
MAX_COPY_BYTES = 2**31
LEFT_OUT = {".git", HOME, "__pycache__", "node_modules"}
"""Directories that are not copied, beside virtual environments."""


class ResumeKind(Enum):
    """What a resume is found to be, as the user reads it."""

    EQUAL = "EQUAL"
    LOST = "LOST"
    NOTHING_TO_RESUME = "NOTHING TO RESUME"
    CANNOT_TELL = "CANNOT TELL"


@dataclass(frozen=True, slots=True)
class ResumePlan:
    """After which steps a run is ended, and the command that resumes it."""

    steps: tuple[int, ...]
    """Numbers of optimizer steps of the whole run."""
    argv: tuple[str, ...]
    """Words of the command; none where the scenario of the run has them."""


@dataclass(frozen=True, slots=True)
class ResumeVerdict:
    """What a resume has lost."""

    kind: ResumeKind
    reason: str = ""
    """Why there is no comparison."""
    output: tuple[str, ...] = ()
    """The end of what the last run printed, if that says more."""
    resumption: Resumption | None = None
    runs: tuple[Run, ...] = ()
    num_repeated: int = 0
    """Steps that the resumed run took again."""
    interrupted_by: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """OK if nothing was lost, DIVERGED if something was, NOT_COMPARABLE if there is no comparison."""
        codes = {ResumeKind.EQUAL: ExitCode.OK, ResumeKind.LOST: ExitCode.DIVERGED}
        return ExitCode.INTERRUPTED if self.interrupted_by else codes.get(self.kind, ExitCode.NOT_COMPARABLE)


class NoComparison(Exception):
    """There is nothing to compare; `args` are the reason and the end of an output."""


def make_resume_plan(options: ReplayOptions, invocation: Invocation) -> ResumePlan:
    """Return what a command line asks for; UsageError where it cannot be carried out."""
    given = {"--runs": options.num_runs, "--against": options.against, "--step": options.step}
    unused = [name for name, value in given.items() if value is not None]
    at, command = options.resume_at or "(missing)", options.resume_command or "(missing)"
    steps = tuple(int(text) if text.strip().isdecimal() else 0 for text in at.split(","))
    try:
        argv, problem = tuple(shlex.split(options.resume_command or "")), ""
    except ValueError as error:
        argv, problem = (), f" {error}"
    if unused or problem or not (argv or options.scenario) or not all(steps) or [*steps] != sorted({*steps}):
        what = f"--resume-at {at} --resume-command {command}:{problem} not usable"
        what = f"{', '.join(unused)} with --resume-at" if unused else what
        example = "--resume-at 7, or 7,9, with --resume-command 'python train.py --resume DIR'"
        raise UsageError(what, legal=f"numbers of optimizer steps, and a command: {example}")
    if argv:
        check_program(RunSpec(argv), invocation.cwd, invocation.environ)
    return ResumePlan(steps, argv)


async def record_resumed(
    resume: ResumePlan, invocation: Invocation, plan: ReplayPlan, launcher: Launcher
) -> ResumeVerdict:
    """Carry out the runs, until one is of no use, and say what was lost. UsageError for too large a directory."""
    resume_argv = resume.argv or plan.run_spec.resume_argv
    if plan.run_spec.call is not None or not resume_argv:
        plan.out.give_back()
        what = "--resume-at for a scenario without a resume_command"
        raise UsageError(what, remedy="add resume_command to the scenario")
    runs: list[Run] = []
    cwd = invocation.cwd.resolve()
    sides = [plan.directory / name for name in ("straight", "resumed")]

    async def record(side: Path, end_at: int | None = None, *, resumes: bool = True, is_asked: bool = False) -> Record:
        if is_asked:  # what the killed run has written, perhaps unseen, it must not find
            remove_tree(str(side))
            copy_directory(cwd, side, plan.directory)
        argv = resume_argv if resumes else plan.run_spec.argv
        lines = plan.directory / f"steps-{len(runs) + 1}"
        told = {"directory": str(lines), "inside": str(side), "end_at": end_at, "is_asked": is_asked}
        spec = replace(plan.run_spec, argv=argv, callbacks={RECORDER: told})
        place = {**invocation.environ, "PWD": str(side)}
        kind = "straight" if side is sides[0] else "resumed" if end_at is None else "interrupted"
        launcher.display.title = title = f"run {len(runs) + 1}, {kind}"
        run = await launcher.record(spec, plan.directory, len(runs) + 1, environ=place, cwd=side)
        runs.append(run)
        launcher.display.end(f"{title}: {count(run.recording.num_steps, 'step')} in {run.duration_s:.1f} s")
        if launcher.interrupted_by:
            raise NoComparison(f"interrupted by {launcher.interrupted_by}")
        return read_record(lines, run.name)

    try:
        for side in sides:
            copy_directory(cwd, side, plan.directory)
        straight = await record(sides[0], resumes=False)
        _require_steps("the straight run", straight, runs[-1])
        straight = replace(straight, files=new_files(cwd, sides[0]))
        verdict = await _resume(resume, straight, runs, lambda *how, **word: record(sides[1], *how, **word))
    except NoComparison as found:
        verdict = ResumeVerdict(ResumeKind.CANNOT_TELL, *found.args)
    except UsageError:
        plan.out.give_back()
        raise
    finally:
        for side in sides:
            remove_tree(str(side))
    return replace(verdict, runs=tuple(runs), interrupted_by=launcher.interrupted_by)


async def _resume(
    resume: ResumePlan, straight: Record, runs: list[Run], record: Callable[..., Awaitable[Record]]
) -> ResumeVerdict:
    first, *others = resume.steps
    ended = await record(first, resumes=False)
    for one, again in zip(straight.ranks, ended.ranks, strict=False):
        if (step := first_unequal(one, again)) is not None:
            what = "the program does not repeat itself: weights of two straight runs differ before step"
            raise NoComparison(f"{what} {step}")
    if not (ended.tail and "is_ended" in ended.tail):
        raise NoComparison(f"the run ended by itself before it had taken {first} steps", _output(runs[-1]))
    if not ended.saves:  # perhaps it saves on SIGTERM alone
        ended = await record(first, resumes=False, is_asked=True)
    written = ended.saves[-1] if ended.saves else None
    for step in others:
        again = await record(step - straight.label(written or 0))
        written = (written or 0) + again.saves[-1] if again.saves else written
    resumed = await record()
    is_fresh = bool(resumed.steps) and resumed.steps[0]["weights"] == straight.steps[0]["weights"]
    if written is None and ((is_fresh and len(resumed.steps) >= len(straight.steps)) or not resumed.steps):
        steps = some(str(straight.label(at)) for at in straight.saves)
        writes = f"one after {steps} steps" if steps else "none with torch.save or safetensors"
        writes += f", but {some(straight.files)}" if straight.files and not steps else ""
        reason = f"no checkpoint was seen within {first} steps; the straight run writes {writes}"
        return ResumeVerdict(ResumeKind.NOTHING_TO_RESUME, reason, _output(runs[-1]))
    _require_steps("the resumed run", resumed, runs[-1])
    found = compare_ranks(straight, resumed, ended, written)
    kind = ResumeKind.LOST if found.losses else ResumeKind.EQUAL
    return ResumeVerdict(kind, resumption=found, num_repeated=max(0, resume.steps[-1] - found.step))


def compare_ranks(straight: Record, resumed: Record, ended: Record, written: int | None) -> Resumption:
    """Return what rank 0 of the resumed run lost, and what other ranks lost beside it.

    NoComparison if ranks are missing, or nothing says where one resumed.
    """
    if not len(straight.ranks) == len(resumed.ranks) == len(ended.ranks):
        numbers = f"{len(straight.ranks)} straight, {len(ended.ranks)} until it was ended, {len(resumed.ranks)} resumed"
        raise NoComparison(f"the runs have different numbers of ranks that took steps: {numbers}")
    found = None
    for rank, (a, b, again) in enumerate(zip(straight.ranks, resumed.ranks, ended.ranks, strict=True)):
        of_rank = compare_resumed(a, b, written, unrepeated(a, again))
        if of_rank is None:
            raise NoComparison(
                "the resumed run has weights, optimizer state and batches of no step of the straight run"
                + (f", on rank {rank}" if rank else "")
            )
        new = [replace(each, rank=rank) for each in of_rank.losses if found and each not in found.losses]
        found = replace(found, losses=(*found.losses, *new)) if found else of_rank
    assert found is not None
    # Reduced gradients differ on all ranks, whichever has lost something.
    return replace(found, losses=tuple(sorted(found.losses, key=lambda each: each.code is LossCode.LOSS)))


def _require_steps(name: str, record: Record, run: Run) -> None:
    """Raise NoComparison if a run failed, or took no optimizer step."""
    if run.recording.exit_code or not record.steps:
        what = run.recording.problems[0].what if run.recording.exit_code else "it took no optimizer step"
        raise NoComparison(f"{name} failed: {what}", _output(run))


def _output(run: Run) -> tuple[str, ...]:
    return tuple(output_tail(run.output))


def read_record(directory: Path, name: str) -> Record:
    """Return the lines that the ranks of one run have left; without any, an empty record.

    Raises NoComparison if several processes of one rank took steps, or the recorder failed.
    """
    paths = {path: int(path.stem.split("-")[1]) for path in directory.glob("steps-*.jsonl")}
    if len({*paths.values()}) < len(paths):
        raise NoComparison(f"{len(paths)} processes of {name} took optimizer steps, and not each has a RANK of its own")
    records = [_read_rank(path, name) for path in sorted(paths, key=paths.__getitem__)]
    return replace(records[0], others=records[1:]) if records else Record(())


def _read_rank(path: Path, name: str) -> Record:
    try:
        lines = [json.loads(line) for line in read_text(path).splitlines()]
    except (OSError, *MALFORMED) as error:
        raise NoComparison(f"the lines of {name} cannot be read: {error!r:.100}") from None
    last = lines[-1] if lines else {}
    if "problem" in last:
        raise NoComparison(f"{name}: {last['problem']}")
    has_tail = "is_tail" in last or "is_ended" in last
    return Record(lines[: len(lines) - has_tail], last if has_tail else None)


def copy_directory(source: Path, target: Path, out: Path) -> None:
    """Copy a working directory without what no program trains with; UsageError if it is too large.

    A link into it becomes one into the copy; one that leads elsewhere, to data say, leads there still.
    """
    num_bytes = 0
    for parent, directories, names in os.walk(source):
        here = target / Path(parent).relative_to(source)
        here.mkdir()
        below = {name: Path(parent, name) for name in directories}
        directories[:] = [name for name, path in below.items() if not path.is_symlink() and not _is_left_out(path, out)]
        for path in [*(Path(parent, name) for name in names), *(path for path in below.values() if path.is_symlink())]:
            if path.is_symlink():
                aim = path.resolve()
                (here / path.name).symlink_to(target / aim.relative_to(source) if aim.is_relative_to(source) else aim)
            elif path.is_file():  # no FIFO, no socket
                num_bytes += path.stat().st_size
                if num_bytes > MAX_COPY_BYTES:
                    what = f"{path_text(source)} holds more than {MAX_COPY_BYTES >> 30} GiB"
                    raise UsageError(what, remedy="run in a directory of the program's files, with links to its data")
                shutil.copy2(path, here / path.name)


def new_files(source: Path, target: Path) -> list[str]:
    """Return names of files in a copy that its source does not have."""
    found = (path.relative_to(target) for path in sorted(target.rglob("*")) if path.is_file())
    return [str(each) for each in found if not (source / each).exists() and LEFT_OUT.isdisjoint(each.parts)]


def _is_left_out(path: Path, out: Path) -> bool:
    return path.name in LEFT_OUT or path == out or (path / "pyvenv.cfg").exists()
