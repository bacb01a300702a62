"""What a resumed run lost: its steps beside those of the straight run, from the lines of both. Starts nothing.

    place: weights, optimizer state, batch and last checkpoint vote on the step at which it resumed
    first resumed step:  weights ─▶ optimizer state ─▶ buffers, other modules ─▶ frozen weights ─▶ generators
    every resumed step:  settings, batch; while nothing differs: loss, gradients, other modules, checkpoints
    at the end:          other modules, number of steps; variables that are back at their value of step 0 are hints

Each difference is looked up among all steps of the straight run. Lines are those of `ResumptionRecorder`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Line = Mapping[str, Any]
MAX_NAMES = 3
NEAR = 0.25
"""A number is back at step 0's if it is so much nearer to it than to that of the straight run."""
WORDS = {
    "exp_avg": "moments",
    "exp_avg_sq": "moments",
    "max_exp_avg_sq": "moments",
    "momentum_buffer": "momentum",
    "step": "step count",
}
"""Keys of optimizers' states, as a person calls them."""


class LossCode(Enum):
    """Kinds of loss, and their sentences. Scripts rely on the names: none changes its meaning."""

    WEIGHTS_REORDERED = "{owner} holds its weights in a different order: {names} against {others}"
    WEIGHTS_COPIED = "weights equal those of {source}: {names}"
    WEIGHTS_NOT_RESTORED = "weights are those of step 0, so they were not restored: {names}"
    WEIGHTS_OF_STEP = "weights are those before step {other}: {names}"
    WEIGHTS_ROUNDED = "weights are rounded to {dtype}: {names}"
    WEIGHTS_UNKNOWN = "weights are those of no step: {names}"
    STATE_LOST = "{owner}'s {what} of {names} are lost: they start from nothing"
    STATE_NEW = "{owner} has {what} of {names}, which the straight run has not"
    STATE_NUMBER = "{owner}'s {what} of {names} is {b:g} against {a:g}"
    STATE_SWAPPED = "{owner}'s {what} belong to other weights: {names}"
    STATE_OF_STEP = "{owner}'s {what} of {names} are those before step {other}"
    STATE_UNKNOWN = "{owner}'s {what} of {names} are those of no step"
    MODULES_NOT_RESTORED = "buffers, or weights outside the optimizer, are those of step 0, so not restored: {names}"
    MODULES_COPIED = "buffers, or weights outside the optimizer, are a copy of {source}: {names}"
    MODULES_OF_STEP = "buffers, or weights outside the optimizer, are those before step {other}: {names}"
    MODULES_UNKNOWN = "buffers, or weights outside the optimizer, differ: {names}"
    FREEZING = "frozen weights are trained, or trained ones frozen: {names}"
    GENERATOR_OF_STEP = "{generator}'s generator was set back: it stands where it stood at step {other}{doubt}"
    GENERATOR_SEEDED = "{generator}'s generator was set back: it stands where manual_seed({seed}) puts it{doubt}"
    GENERATOR_UNKNOWN = "{generator}'s generator stands where it stood at no step{doubt}"
    SETTING = "{name} is {b:.6g} against {a:.6g}{origin}"
    DATA_START_OVER = "the batch is that of step 0: the data start over"
    DATA_SKIPPED = "the batch is that of step {other}: {num} skipped"
    DATA_REPEATED = "the batch is that of step {other}: {num} repeated"
    DATA_OF_STEP = "the batch is that of step {other}: the data have another order"
    DATA_VALUES = (
        "{num} of {total} samples have other values, though the loader asked for the same indices: workers or"
        " augmentation draw other numbers"
    )
    DATA_FOREIGN = "{num} of {total} samples were in no batch of the straight run"
    DATA_PERMUTED = "the samples are those of steps {names}: another permutation"
    DATA_REORDERED = "the same samples until the end, in another order"
    DATA_DIFFERENT = "the inputs differ"
    SAMPLES = "until the end, {never} of {total} samples are never trained, {more} more often than in the straight run"
    WINDOW = "the first resumed step is made of {num} of {total} batches: the gradients of the first {missing} are lost"
    SCALE = "the loss is {ratio:g} times the straight run's, and gradients are equal: the gradient scaler was lost"
    LOSS = "with equal weights and inputs, {shown} differs{where}"
    CHECKPOINT = "the checkpoint written before this step differs, though all steps are equal: {names}"
    STEPS = "{a} steps straight, {b} with the resume"


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing that the resumed run has not as the straight run had it."""

    code: LossCode
    step: int
    """At which it shows first, as the straight run counts."""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """What is lost, in words."""
        return self.code.value.format(**self.values)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a resumed run is to the straight one."""

    step: int
    """At which it resumed, as the straight run counts its first optimizer's steps."""
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
    tail: Line | None
    """What was left when the process ended; None if it was ended before."""

    def label(self, at: int) -> int:
        """Number of a step among those of its optimizer."""
        return sum(line["optimizer"] == self.steps[at]["optimizer"] for line in self.steps[:at])

    @property
    def saves(self) -> tuple[int, ...]:
        """Numbers of lines before which checkpoints were written."""
        lines = [*self.steps, *([self.tail] if self.tail else [])]
        return tuple(at for at, line in enumerate(lines) if line["saves"])


def compare_resumed(straight: Record, resumed: Record, expected: int | None) -> Resumption | None:
    """Return what the resumed run lost; None if nothing says where it resumed.

    `expected` is the number of steps before the last checkpoint.
    """
    return _Comparison(straight, resumed, expected).result()


def first_unequal(straight: Record, again: Record) -> int | None:
    """Return the first step before which the weights of two straight runs differ."""
    lines = [*again.steps, *([again.tail] if again.tail and "weights" in again.tail else [])]
    pairs = zip(straight.steps, lines, strict=False)
    found = (at for at, (a, b) in enumerate(pairs) if a["weights"] != b["weights"])
    return next((straight.label(at) for at in found), None)


class _Comparison:
    def __init__(self, straight: Record, resumed: Record, expected: int | None) -> None:
        self._straight, self._expected = straight, expected
        self._tails = straight.tail, resumed.tail
        has_calls = any(line["calls"] for line in straight.steps)
        # Data that enter no module are seen where a loader hands them out.
        self._key = "calls" if has_calls else "batches"
        self._a = straight.steps
        self._b, self._orders = _in_order_of(straight.steps, resumed.steps)
        self._losses: list[Loss] = []

    def result(self) -> Resumption | None:
        first = self._b[0]
        at, how = self._place(first)
        if at is None:
            return None
        self._at = at
        b_firsts: dict[int, tuple[Line, Line]] = {}
        for a, b in zip(self._a[at:], self._b, strict=False):
            if a["optimizer"] == b["optimizer"]:
                b_firsts.setdefault(a["optimizer"], (a, b))
        for number, (a, b) in sorted(b_firsts.items()):
            self._compare_optimizer(a, b, f"{b['kind']} ({number + 1})" if len(b_firsts) > 1 else b["kind"])
        a = self._a[at]
        if len(self._calls(first)) >= len(self._calls(a)) or not self._calls(first):  # not within a window
            self._compare_modules(a, first, at)
        if a["trains"] != first["trains"]:
            named = zip(first["names"], a["trains"], first["trains"], strict=False)
            self._add(LossCode.FREEZING, at, names=some([name for name, x, y in named if x != y]))
        self._compare_steps()
        self._compare_generators(a, first)
        self._compare_ends()
        num_steps = min(len(self._a) - at, len(self._b))
        return Resumption(self._straight.label(at), how, num_steps, tuple(self._losses), tuple(self._hints(a, first)))

    def _add(self, code: LossCode, at: int, **values: Any) -> None:
        self._losses.append(Loss(code, self._straight.label(min(at, len(self._a) - 1)), values))

    def _label(self, at: int) -> int:
        return self._straight.label(at)

    def _calls(self, line: Line) -> list[Any]:
        return list(line[self._key])

    def _inputs(self, line: Line, key: str = "") -> list[Any]:
        return [call["inputs"] for call in line[key or self._key]]

    # ---------------------------------------------------------------------------------------------------------- place

    def _place(self, first: Line) -> tuple[int | None, str]:
        """(the step of the straight run at which the resumed one begins, what says so)."""
        weights = first["weights"]
        like = [
            at
            for at, line in enumerate(self._a)
            if line["optimizer"] == first["optimizer"] and len(line["weights"]) == len(weights)
        ]
        if not like:
            return None, ""
        expected = self._expected

        def nearest(found: Iterable[int]) -> int:
            return min(found, key=lambda at: abs(at - expected) if expected is not None else at)

        moving = [k for k in range(len(weights)) if len({self._a[at]["weights"][k] for at in like}) > 1]
        num_equal = {at: sum(weights[k] == self._a[at]["weights"][k] for k in moving) for at in like}
        full = [at for at in like if self._a[at]["weights"] == weights]
        rounded = {kind: [at for at in like if self._a[at]["rounded"][kind] == weights] for kind in first["rounded"]}
        by_weights, how = None, ""
        if full:
            by_weights, how = nearest(full), "its weights are those before this step"
        elif any(rounded.values()):
            kind = next(kind for kind, found in rounded.items() if found)
            by_weights, how = nearest(rounded[kind]), f"its weights are those before this step, rounded to {kind}"
        elif most := max(num_equal.values()):
            by_weights = nearest(at for at in like if num_equal[at] == most)
            how = f"{most} of its {len(moving)} weights are those before this step"
        states = [at for at in like if any(first["state"]) and self._a[at]["state"] == first["state"]]
        batches = [at for at in like if self._calls(first) and self._inputs(self._a[at]) == self._inputs(first)]
        votes: dict[int, float] = defaultdict(float)
        for at, weight in (
            *([(by_weights, 1.5)] if by_weights is not None else []),
            *([(nearest(states), 1.0)] if states else []),
            *([(batches[0], 1.0)] if len(batches) == 1 else []),
            *([(expected, 0.6)] if expected in like and expected is not None else []),
        ):
            votes[at] += weight
        if not votes:
            return None, ""
        chosen = max(votes, key=lambda at: (votes[at], at == by_weights))
        if chosen == by_weights:
            return chosen, how
        others = "no step" if by_weights is None else f"step {self._label(by_weights)}"
        return chosen, f"its optimizer state, batch or checkpoint say so; its weights are those of {others}"

    # ------------------------------------------------------------------------------------------- first resumed step

    def _compare_optimizer(self, a: Line, b: Line, owner: str) -> None:
        """The weights, and what the optimizer remembers of them, with which one optimizer begins."""
        names, at = b["names"], self._at
        same = [line for line in self._a if line["optimizer"] == b["optimizer"]]
        order = next((found for line, found in self._orders if line is b), None)
        if order is not None:
            self._add(LossCode.WEIGHTS_REORDERED, at, owner=owner, names=some(order), others=some(names))
        held = {digest: name for name, digest in a["held"].items()}
        kinds: dict[tuple[LossCode, Any], list[str]] = defaultdict(list)
        for k, (x, y) in enumerate(zip(a["weights"], b["weights"], strict=True)):
            if x == y:
                continue
            steps = [number for number, line in enumerate(same) if line["weights"][k] == y]
            dtype = next((kind for kind, found in a["rounded"].items() if found[k] == y), None)
            if y in held:
                kinds[LossCode.WEIGHTS_COPIED, held[y].partition(".")[0]].append(names[k])
            elif steps and steps[0] == 0:
                kinds[LossCode.WEIGHTS_NOT_RESTORED, None].append(names[k])
            elif steps:
                kinds[LossCode.WEIGHTS_OF_STEP, steps[-1]].append(names[k])
            else:
                code = LossCode.WEIGHTS_ROUNDED if dtype else LossCode.WEIGHTS_UNKNOWN
                kinds[code, dtype].append(names[k])
        for (code, value), found in kinds.items():
            shown = some(found, len(names))
            self._add(code, at, names=shown, source=value, other=value, dtype=value)
        self._compare_states(a, b, owner, same)

    def _compare_states(self, a: Line, b: Line, owner: str, same: Sequence[Line]) -> None:
        names = b["names"]
        where = {
            value: (number, k)
            for lines in (list(reversed([*enumerate(same)])), [(same.index(a), a)])
            for number, line in lines
            for k, state in enumerate(line["state"])
            for value in state.values()
            if isinstance(value, str) and not value.startswith("0")
        }
        kinds: dict[tuple[LossCode, Any, str], list[str]] = defaultdict(list)
        for k, (x, y) in enumerate(zip(a["state"], b["state"], strict=True)):
            for key in sorted({*x, *y}):
                old, new = x.get(key), y.get(key)
                if old == new:
                    continue
                if key not in x:
                    kinds[LossCode.STATE_NEW, None, key].append(names[k])
                elif new is None or (_is_zero(new) and not _is_zero(old)):
                    kinds[LossCode.STATE_LOST, None, key].append(names[k])
                elif isinstance(new, float):
                    kinds[LossCode.STATE_NUMBER, (old, new), key].append(names[k])
                elif new in where and where[new][0] == same.index(a):
                    kinds[LossCode.STATE_SWAPPED, None, key].append(f"{names[k]} has that of {names[where[new][1]]}")
                elif new in where:
                    kinds[LossCode.STATE_OF_STEP, where[new][0], key].append(names[k])
                else:
                    kinds[LossCode.STATE_UNKNOWN, None, key].append(names[k])
        grouped: dict[tuple[LossCode, Any, tuple[str, ...]], list[str]] = defaultdict(list)
        for (code, value, key), found in kinds.items():
            grouped[code, value, tuple(found)].append(key)
        for (code, value, found), keys in grouped.items():
            words = list(dict.fromkeys(WORDS.get(key, key) for key in keys))
            what = " and ".join(words) + (f" ({', '.join(keys)})" if words != keys else "")
            numbers = {"a": value[0], "b": value[1]} if isinstance(value, tuple) else {}
            shown = some(found, 0 if code is LossCode.STATE_SWAPPED else len(names), "weights")
            self._add(code, self._at, owner=owner, what=what, names=shown, other=value, **numbers)

    def _compare_modules(self, a: Line, b: Line, at: int) -> bool:
        """Buffers, frozen weights and modules that no optimizer trains; return whether any differ."""
        kinds: dict[tuple[LossCode, Any], list[str]] = defaultdict(list)
        trained = dict(zip(b["weights"], b["names"], strict=False)) if "weights" in b else {}
        for name in _unequal_held(a, b):
            digest = b["held"][name]
            steps = [number for number, line in enumerate(self._a) if line["held"].get(name) == digest]
            if steps and steps[0] == 0:
                kinds[LossCode.MODULES_NOT_RESTORED, None].append(name)
            elif digest in trained:
                kinds[LossCode.MODULES_COPIED, "the trained weights"].append(name)
            elif steps:
                kinds[LossCode.MODULES_OF_STEP, self._label(steps[-1])].append(name)
            else:
                kinds[LossCode.MODULES_UNKNOWN, None].append(name)
        for (code, value), found in kinds.items():
            self._add(code, at, names=some(found), other=value, source=value)
        return bool(kinds)

    def _compare_generators(self, a: Line, b: Line) -> None:
        """Where generators stand that the straight run draws from, if the data or a loss differ: the likely cause.

        Behind the data if the batch is a known one: then they may stand elsewhere because of it.
        """
        codes = [loss.code for loss in self._losses]
        has_data = any(code.name.startswith("DATA") for code in codes)
        if not has_data and LossCode.LOSS not in codes:
            return
        num = min(len(self._calls(a)), len(self._calls(b)))
        is_aligned = len(self._calls(a)) != len(self._calls(b)) and 0 < num and self._key == "calls"
        if is_aligned and self._inputs(a)[-num:] == self._inputs(b)[-num:]:
            a, b = ({**line, "random": line["calls"][-num]["random"], "seed": None} for line in (a, b))
        known = {LossCode.DATA_START_OVER, LossCode.DATA_SKIPPED, LossCode.DATA_REPEATED, LossCode.DATA_OF_STEP}
        is_effect = bool(known & {*codes})
        for name in sorted(a["random"].keys() & b["random"].keys(), reverse=True):
            state = b["random"][name]
            later = [line["random"].get(name) for line in self._a[self._at :]]
            if state == a["random"][name] or len({*later}) < 2:
                continue
            steps = [at for at, line in enumerate(self._a) if line["random"].get(name) == state]
            code = LossCode.GENERATOR_OF_STEP if steps else LossCode.GENERATOR_UNKNOWN
            seed = b["seed"] if name == "torch" else None
            if not steps and seed is not None:
                code = LossCode.GENERATOR_SEEDED
            doubt = " (perhaps because the data stand elsewhere)" if is_effect else ""
            other = self._label(steps[0]) if steps else None
            values = {"generator": name, "other": other, "seed": seed, "doubt": doubt}
            self._losses.insert(len(self._losses) if is_effect else 0, Loss(code, self._label(self._at), values))

    # -------------------------------------------------------------------------------------------- every resumed step

    def _compare_steps(self) -> None:
        told: set[str] = set()
        known_rows = {row for line in self._a for row in _rows(line, self._key)}
        is_clean = not self._losses
        for m, (a, b) in enumerate(zip(self._a[self._at :], self._b, strict=False)):
            at = self._at + m
            if a["settings"] != b["settings"] and "settings" not in told:
                told.add("settings")
                self._compare_settings(a, b, at)
            rows = _rows(b, self._key)
            may_tell = is_clean or m == 0 or (rows and {*rows} <= known_rows)
            if self._inputs(a) != self._inputs(b) and "batch" not in told and may_tell:
                told.add("batch")
                num_a, num_b = len(self._calls(a)), len(self._calls(b))
                if m == 0 and num_b > num_a > 0 and self._inputs(b)[-num_a:] == self._inputs(a):
                    told.discard("batch")  # evaluated, or skipped batches, before the first step
                elif m == 0 and num_b < num_a and self._inputs(a)[num_a - num_b :] == self._inputs(b):
                    if a["gradients"] != b["gradients"]:
                        self._add(LossCode.WINDOW, at, num=num_b, total=num_a, missing=num_a - num_b)
                else:
                    self._compare_data(m)
            if is_clean:
                self._compare_results(a, b, at, told)
                if m and self._compare_modules(a, b, at):
                    told.add("modules")
                is_clean = {loss.code for loss in self._losses} <= {LossCode.SCALE}
            if is_clean:
                self._compare_saves(a, b, at)
                is_clean = {loss.code for loss in self._losses} <= {LossCode.SCALE}

    def _compare_settings(self, a: Line, b: Line, at: int) -> None:
        for group, (old, new) in enumerate(zip(a["settings"], b["settings"], strict=False)):
            for key in [key for key in old if key in new and old[key] != new[key]]:
                steps = [
                    number
                    for number, line in enumerate(self._a)
                    if line["optimizer"] == a["optimizer"]
                    and group < len(line["settings"])
                    and line["settings"][group].get(key) == new[key]
                ]
                step = 0 if steps and steps[0] == 0 else min(steps, key=lambda each: abs(each - at), default=None)
                origin = "" if step is None else f", that of step {self._label(step)}"
                name = key if len(a["settings"]) == 1 else f"{key} of group {group}"
                x, y = (each[key] if isinstance(each[key], int | float) else each[key][0] for each in (old, new))
                self._add(LossCode.SETTING, at, name=name, a=x, b=y, origin=origin)

    def _compare_results(self, a: Line, b: Line, at: int, told: set[str]) -> None:
        """Losses and gradients of a step whose weights are equal."""
        pairs = list(zip(a["gradients"], b["gradients"], strict=False))
        names = [b["names"][k] for k, (x, y) in enumerate(pairs) if x != y]
        losses = list(zip(a["losses"], b["losses"], strict=False)) if len(a["losses"]) == len(b["losses"]) else []
        ratios = {y / x for x, y in losses if x}
        if len(ratios) == 1 and ratios != {1.0} and not names and "scale" not in told:
            told.add("scale")
            self._add(LossCode.SCALE, at, ratio=ratios.pop())
        if names and "batch" not in told:
            outputs = [[call.get("output") for call in line["calls"]] for line in (a, b)]
            where = " (modules' outputs are equal)" if outputs[0] == outputs[1] and a["calls"] else ""
            unequal = next(((x, y) for x, y in losses if x != y), None)
            shown = (
                f"gradient of {some(names)}" if unequal is None else f"loss {unequal[1]:.5g} against {unequal[0]:.5g}"
            )
            self._add(LossCode.LOSS, at, shown=shown, where=where)

    def _compare_saves(self, a: Line, b: Line, at: int) -> None:
        """Checkpoints that both runs wrote at the same step: averages, counters and positions that they hold."""
        for x, y in zip(a["saves"], b["saves"], strict=False):
            if names := [name for name in x if name in y and x[name] != y[name] and _is_comparable(name, x[name])]:
                self._add(LossCode.CHECKPOINT, at, names=some([name.removeprefix(".") for name in names]))
                return

    def _compare_ends(self) -> None:
        a, b = self._tails
        if not self._losses and a and b:
            self._compare_modules(a, b, len(self._a))
        if not self._losses and a and b:
            self._compare_saves(a, b, len(self._a))
        if self._at + len(self._b) != len(self._a):
            self._add(LossCode.STEPS, len(self._a) - 1, a=len(self._a), b=self._at + len(self._b))

    def _compare_data(self, m: int) -> None:
        """What the batches of the resumed run are, by the digests of whole batches and of their rows."""
        key, at = self._key, self._at + m
        a, b = self._a[at], self._b[m]
        seen = Counter(row for line in self._a for row in _rows(line, key))
        foreign = [row for row in _rows(b, key) if row not in seen]
        num_rows = len(_rows(b, key))
        asked = [_rows(line, "batches") for line in (a, b)]
        if foreign and asked[0] and asked[0] == asked[1][-len(asked[0]) :]:
            self._add(LossCode.DATA_VALUES, at, num=len(foreign), total=num_rows)
            return
        if foreign and asked[1]:  # changed between the loader and the model: what the loader asked for says more
            key, foreign = "batches", []
            seen = Counter(row for line in self._a for row in _rows(line, key))
        known = [number for number, line in enumerate(self._a) if self._is_batch(line, b, key)]
        if len(self._b) > m + 1:
            following = self._b[m + 1]
            known = [
                number
                for number in known
                if number + 1 < len(self._a) and self._is_batch(self._a[number + 1], following, key)
            ] or known
        if known:
            self._tell_known(min(known, key=lambda number: abs(number - at)), at, key)
        elif foreign:
            self._add(LossCode.DATA_FOREIGN, at, num=len(foreign), total=num_rows)
        elif not seen:
            self._add(LossCode.DATA_DIFFERENT, at)
        mine = Counter(row for line in [*self._a[: self._at], *self._b] for row in _rows(line, key))
        rest = Counter(row for line in self._a[at:] for row in _rows(line, key))
        other = Counter(row for line in self._b[m:] for row in _rows(line, key))
        if not known and not foreign and seen:
            steps = Counter(self._first_with(row, key) for row in _rows(b, key))
            if rest == other:
                self._add(LossCode.DATA_REORDERED, at)
            else:
                self._add(LossCode.DATA_PERMUTED, at, names=some([str(self._label(s)) for s in sorted(steps)]))
        if not foreign and seen and rest != other:
            never, more = [x for x in seen if x not in mine], [x for x in seen if mine[x] > seen[x]]
            if never or more:
                self._add(LossCode.SAMPLES, at, never=len(never), total=len(seen), more=len(more))

    def _tell_known(self, number: int, at: int, key: str) -> None:
        """A batch is that of another step: skipped and repeated are words for data that come once."""
        rows = {*_rows(self._a[number], key)}
        is_once = not any(rows & {*_rows(line, key)} for at, line in enumerate(self._a) if at != number)
        distance = number - at
        if number == 0:
            code = LossCode.DATA_START_OVER
        elif is_once:
            code = LossCode.DATA_SKIPPED if distance > 0 else LossCode.DATA_REPEATED
        else:
            code = LossCode.DATA_OF_STEP
        num = f"{abs(distance)} batch{'es' if abs(distance) > 1 else ''}"
        self._add(code, at, other=self._label(number), num=num)

    def _is_batch(self, line: Line, other: Line, key: str) -> bool:
        mine = self._inputs(line, key)
        return bool(mine) and mine == self._inputs(other, key)[-len(mine) :]

    def _first_with(self, row: Any, key: str) -> int:
        return next(number for number, line in enumerate(self._a) if row in _rows(line, key))

    # ---------------------------------------------------------------------------------------------------------- hints

    def _hints(self, a: Line, b: Line) -> Iterator[str]:
        """Variables at the first resumed step: those that are back at step 0 first."""
        zero, old, new = (line["variables"] or {} for line in (self._a[0], a, b))
        found = []
        for name in [name for name in old if name in new and _is_comparable(name, old[name], has_generators=True)]:
            x, y, z = zero.get(name), old[name], new[name]
            if y == z or type(y) is bool:
                continue
            is_back = z == x
            if not is_back and not name.endswith("]") and all(isinstance(each, int | float) for each in (x, y, z)):
                is_back = abs(z - x) <= NEAR * abs(z - y)
            if is_back or self._losses:
                text = f"{name} is {_shown(z)} against {_shown(y)}"
                found.append((not is_back, name, text + (", as at step 0" if is_back else "")))
        yield from (text for *_, text in sorted(found))


def _in_order_of(straight: Sequence[Line], resumed: Sequence[Line]) -> tuple[list[Line], list[tuple[Line, list[str]]]]:
    """(the resumed lines with weights in the straight run's order, those lines that had another one with it)."""
    lines, orders = [], []
    names = {line["optimizer"]: line["names"] for line in reversed(straight)}
    for line in resumed:
        want, have = names.get(line["optimizer"], line["names"]), line["names"]
        if want != have and len({*want}) == len(want) and sorted(want) == sorted(have):
            at = [have.index(name) for name in want]
            keys = ("names", "weights", "gradients", "state", "trains")
            line = {**line, **{key: [line[key][k] for k in at] for key in keys}}
            orders.append((line, have))
        lines.append(line)
    return lines, orders


def _unequal_held(a: Line, b: Line) -> list[str]:
    """Names of values outside the optimizer that differ, unless another module of the resumed run has the value.

    Modules alike are numbered by what they hold, and a resume may make more of them.
    """
    there: dict[str, set[str]] = defaultdict(set)
    for name, digest in b["held"].items():
        if "#" in name:
            there[name.rpartition(".")[2]].add(digest)
    return [
        name
        for name, digest in a["held"].items()
        if name in b["held"] and b["held"][name] != digest and digest not in there[name.rpartition(".")[2]]
    ]


def _rows(line: Line, key: str) -> list[Any]:
    return [row for call in line[key] for row in call["rows"]]


def _is_zero(value: Any) -> bool:
    return value == 0 or (isinstance(value, str) and value.startswith("0"))


def _is_comparable(name: str, value: Any, *, has_generators: bool = False) -> bool:
    """Return whether a value may differ only because something was lost: no texts, and nothing that measures time."""
    is_digest = isinstance(value, str) and value.startswith(("#", "generator#") if has_generators else "#")
    return (is_digest or not isinstance(value, str)) and "time" not in name


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value.partition("#")[0] or "another value"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def some(names: Iterable[str], total: int = 0, noun: str = "") -> str:
    """Return the first names and the number of others; "all 4 weights" where there are as many as `total`."""
    names = list(dict.fromkeys(names))
    if len(names) == total > 1:
        return f"all {total}{f' {noun}' if noun else ''}"
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")
