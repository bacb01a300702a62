"""Locks each optimizer step of a run to that of a base run, and measures what the run made of it before that.

| run | what it does |
|---|---|
| base | keeps each step: weights before it, gradients, weights after it, state and settings of the optimizer |
| locked | compares each step with the base's, then takes the base's weights and state: no difference grows |
| nudged | is a locked base whose weights move by -1, 0 or 1 ulp before each step: measures rounding |
| control | is any of these with dropout, batch statistics, and noise that do not see the other rows of a batch |

Steps are matched by optimizer, in the order of their first steps, and weights by their place in the optimizer. A run
writes a line of JSON for each step.
"""

import functools
import inspect
import itertools
import json
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high
from typing import Any
from zlib import crc32

import torch
from torch.optim import Optimizer

from harness.bits.files import UNLIMITED, read_text
from harness.recording.automatic import settings_of
from harness.recording.hooks import CompiledSteps, hook_optimizers, hook_steps
from harness.recording.names import ParameterNames, parameters_of
from harness.recording.process import rank_and_world_size
from harness.recording.program_state import is_capturing, outside_modes, read_states
from harness.recording.recorder import RecorderCallback
from harness.recording.run_spec import RunEnded

LINES = "steps.jsonl"
PHASES = ("before", "gradient", "after", "state")
UPDATE = "update"
"""What a step adds to the weights; compared only if the weights after it differ."""
WAYS = ("foreach", "fused", "capturable", "differentiable")
"""Settings of an optimizer that say how it computes, not what."""
MARGIN = 8.0
"""A difference is more than rounding beyond this many times what one ulp of the weights does."""
FLOOR = 4.0
"""Rounding is at least so many times that of one number, relative to the norm of the tensor."""
COARSE_FLOORS = {torch.bfloat16: 1.0, torch.float16: 1.0}
EQUAL_SETTINGS = 1e-9
"""Relative difference up to which two values of a setting are computed in two ways."""
DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
NOISE = ("randn", "rand", "randn_like", "rand_like")
CLIPS = ("clip_grad_norm_", "clip_grad_value_")
"""Functions of torch.nn.utils that clip gradients, and hide by what factor they differ."""

Named = Iterable[tuple[str, torch.Tensor]]
Step = dict[str, Any]
"""A step by phase, each with its tensors by place and name; and its settings, generators, and names of weights."""


# --------------------------------------------------------------------------------------------------------- comparison


@dataclass(frozen=True, slots=True)
class Rounding:
    """Measured effect of one ulp of the weights on one tensor; the median helps where one step shows 0 by chance."""

    measured: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """By step: (spread, norm of the base)."""
    median: Sequence[float] = (0.0, 0.0)

    def multiple(self, varied: torch.Tensor, base: torch.Tensor, number: int) -> float:
        """Return how many times what rounding does lies between two tensors of a step, of one shape."""
        if (away := distance(varied, base)) == 0:
            return 0.0
        unit = torch.finfo(base.dtype).eps if base.is_floating_point() or base.is_complex() else 0.0
        floor = COARSE_FLOORS.get(base.dtype, FLOOR) * unit * max(norm(base), self.median[1])
        usual = max(self.measured.get(number, (0.0,))[0], self.median[0], floor)
        return away / usual if usual and math.isfinite(away) else math.inf


Roundings = Mapping[tuple[int, str, str], Rounding]
"""By optimizer, phase and tensor."""


def roundings_of(runs: Iterable[Iterable[Step]]) -> Roundings:
    """Return what the lines of nudged runs have measured; of several the largest."""
    found: dict[tuple[int, str, str], dict[int, Sequence[float]]] = {}
    for line in (line for lines in runs for line in lines):
        for phase, measured in line["spreads"].items():
            for name, pair in measured.items():
                of_steps = found.setdefault((line["optimizer"], phase, name), {})
                of_steps[line["number"]] = max(of_steps.get(line["number"], pair), pair)
    return {key: Rounding(each, [*map(median_high, zip(*each.values(), strict=True))]) for key, each in found.items()}


def norm(tensor: torch.Tensor) -> float:
    """Return the L2 norm, summed in double precision."""
    return float(torch.linalg.vector_norm(tensor.to(_wide(tensor))))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the norm of the difference; equal values that are not finite have none."""
    is_equal = (a == b) | (a.isnan() & b.isnan())
    return norm(torch.where(is_equal, 0, a.to(_wide(b)) - b.to(_wide(b))))


def has_equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors of one shape hold the same bits."""
    return a.dtype == b.dtype and torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (a, b)))


def common_factor(
    varied: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor], of: Callable[[str], Rounding], number: int
) -> float | None:
    """Return the one number that all varied tensors are of the base's, if what remains is rounding; None if not."""
    if varied.keys() != base.keys() or any(varied[name].shape != base[name].shape for name in base):
        return None
    pairs = {name: (varied[name].to(_wide(each)), each.to(varied[name].device)) for name, each in base.items()}
    square = sum(norm(its) ** 2 for _, its in pairs.values())
    factor = sum(float((mine * its.conj()).sum().real) for mine, its in pairs.values()) / square if square else 1.0
    if not abs(factor) >= 1e-6 or abs(factor - 1) < 1e-3:
        return None
    rest = (of(name).multiple((mine / factor).to(its.dtype), its, number) for name, (mine, its) in pairs.items())
    return factor if all(each <= MARGIN for each in rest) else None


def compare_step(base: Step, varied: Step, roundings: Roundings) -> dict[str, Any]:
    """Return where the first bit of a step differs, the largest rounding, and the first difference that is more."""
    number, bit, worst = base["number"], None, None

    def result(**difference: Any) -> dict[str, Any]:
        return {"bit": bit, "worst": worst, "difference": difference}

    def rounding(phase: str) -> Callable[[str], Rounding]:
        return lambda name: roundings.get((base["optimizer"], phase, name), Rounding())

    for phase in PHASES:
        if phase == "after":
            for name in {**base["settings"], **varied["settings"]}:
                its, mine = (step["settings"].get(name) for step in (base, varied))
                if its is None or mine is None or not math.isclose(its, mine, rel_tol=EQUAL_SETTINGS):
                    return result(kind="SETTINGS", name=name, values=[its, mine])
        for name in {**base[phase], **varied[phase]}:
            mine, its = varied[phase].get(name), base[phase].get(name)
            where, problem = [phase, _shown(name, base["names"])], ""
            if mine is None or its is None or mine.shape != its.shape:
                shapes = [None if each is None else list(each.shape) for each in (mine, its)]
                problem = f"its shape is {shapes[0] or 'none'}, the base's {shapes[1] or 'none'}"
                return result(kind="DIFFERENT", phase=phase, name=where[1], share=None, times=None, problem=problem)
            its = its.to(mine.device)
            if has_equal_bits(mine, its):
                continue
            bit = bit or where
            if base["num_gradients"] > 1 and phase in ("after", "state"):  # iterations within a step amplify rounding
                continue
            times = rounding(phase)(name).multiple(mine, its, number)
            if times <= MARGIN:
                worst = max(worst or [0.0], [times, *where])
                continue
            factor = None
            if phase == "gradient":
                factor = common_factor(varied[phase], base[phase], rounding(phase), number)
            elif phase == "after":
                factor = common_factor(updates(varied), updates(base), rounding(UPDATE), number)
            if factor is not None:
                return result(kind="FACTOR", of="gradients" if phase == "gradient" else UPDATE, factor=factor)
            share = distance(mine, its) / (norm(its) or 1.0)
            if not (is_known := math.isfinite(times)):
                problem = "rounding does not reach it" if math.isfinite(share) else "it is not finite"
            known = times if is_known else None
            return result(kind="DIFFERENT", phase=phase, name=where[1], share=share, times=known, problem=problem)
    return {"bit": bit, "worst": worst, "difference": None}


def measure_step(base: Step, nudged: Step) -> dict[str, dict[str, tuple[float, float]]]:
    """Return by phase and name how far a nudged step is from the base's, and the norm of the base's."""
    pairs = {phase: (base[phase], nudged[phase]) for phase in PHASES} | {UPDATE: (updates(base), updates(nudged))}
    return {
        phase: {
            name: (distance(after[name], each.to(after[name].device)), norm(each))
            for name, each in before.items()
            if name in after and after[name].shape == each.shape
        }
        for phase, (before, after) in pairs.items()
    }


def updates(step: Step) -> dict[str, torch.Tensor]:
    """Return what a step adds to each weight."""
    return {name: each - step["before"][name] for name, each in step["after"].items() if name in step["before"]}


def _shown(name: str, names: Sequence[str]) -> str:
    """The name of a weight, and of what the optimizer remembers of it: 0.weight exp_avg."""
    place, _, key = name.partition(" ")
    return f"{names[int(place)] if int(place) < len(names) else f'parameter {place}'} {key}".rstrip()


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


# ------------------------------------------------------------------------------------------------------ in the program


class LockedSteps(RecorderCallback):
    """Keeps, compares and locks the steps of one process."""

    def __init__(
        self,
        directory: str,
        *,
        base: str = "",
        nudged: Sequence[str] = (),
        seed: int | None = None,
        ties: Sequence[str] | None = None,
        num_steps: int | None = None,
    ) -> None:
        """Hook the optimizers of this process.

        directory: of this run's lines, and of a base's tensors. base: directory of the base; empty for the base itself.
        nudged: directories of nudged runs. seed: of the nudges; None for a run that is not nudged.
        ties: lines of code whose noise a control ties; None for a run that is no control.
        num_steps: steps of each optimizer after which the run ends; None for all.
        """
        self._directory, self._base, self._nudged = Path(directory), Path(base) if base else None, nudged
        self._nudges = None if seed is None else torch.Generator().manual_seed(seed)
        self._num_steps, self._names = num_steps, ParameterNames()
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, list[int]] = weakref.WeakKeyDictionary()
        """[its number, its steps] of each that has stepped."""
        self._num_optimizers = self._num_begun = 0
        self._pid, self._rank, self._step, self._has_failed = 0, "", Step(), False
        self._roundings: Roundings = {}
        self._control = None if ties is None else Control(ties, lambda: self._num_begun)
        self._unclipped: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
        """By id of a weight: its gradient before it was clipped, that after it, and the version of that."""
        for module, name in itertools.product((torch.nn.utils, torch.nn.utils.clip_grad), CLIPS):
            setattr(module, name, self._around_clip(getattr(module, name)))
        hook_steps(
            self._begin,
            lambda optimizer: self._guarded(self._after, optimizer),
            lambda optimizer: self._guarded(self._gradients, optimizer),
            CompiledSteps(),
        )
        self._coarse, self._moves = 0.0, weakref.WeakKeyDictionary[Optimizer, list[torch.Tensor]]()
        """Eps of the type that autocast computes in, and how far weights have moved for it, until their step."""
        if self._nudges is not None:
            hook_optimizers(lambda optimizer: self._guarded(self._nudge, optimizer))
            autocast: Any = torch.autocast
            autocast.__enter__ = self._around_autocast(autocast.__enter__)

    def _begin(self, optimizer: Optimizer, has_closure: bool) -> None:
        if self._num_steps is not None and self._optimizers.get(optimizer, [0, 0])[1] == self._num_steps:
            raise RunEnded
        self._guarded(self._before, optimizer)
        if not has_closure:
            self._guarded(self._gradients, optimizer)

    def _guarded(self, what: Callable[[Optimizer], None], optimizer: Optimizer) -> None:
        """Call a part of the comparison; a mistake ends it, not the program."""
        if self._has_failed:
            return
        try:
            if is_capturing():
                raise RuntimeError("the step is captured into a CUDA graph, from which no value can be read")
            with outside_modes(), torch.no_grad():
                what(optimizer)
        except Exception as error:  # whatever it is: the program continues
            self._has_failed = True
            self._write({"problem": f"{type(error).__name__}: {error}"})

    def _before(self, optimizer: Optimizer) -> None:
        if self._pid != os.getpid():
            self._claim_rank()
            self._roundings = roundings_of(read_lines(Path(each, self._rank)) for each in self._nudged)
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = [self._num_optimizers, 0]
            self._num_optimizers += 1
        which, number = self._optimizers[optimizer]
        self._optimizers[optimizer] = [which, number + 1]
        weights = parameters_of(optimizer)
        for weight, move in zip(map(_local, weights), self._moves.pop(optimizer, []), strict=False):
            weight.sub_(move)
        if self._base is None:
            self._names.assign(weights)
        self._step = {
            "optimizer": which,
            "number": number,
            "random": {name.removeprefix("random."): state[1].hex() for name, state in read_states().items()},
            "names": [self._names.name(each) or f"parameter {place}" for place, each in enumerate(weights)],
            "settings": {
                name: float(value)
                for name, value in settings_of(optimizer, {})
                if isinstance(value, int | float | torch.Tensor) and name.split(".")[1] not in WAYS
            },
            "before": _copies(_numbered(weights)),
            "num_gradients": 0,
        }

    def _gradients(self, optimizer: Optimizer) -> None:
        """Keep the gradients; of an optimizer with a closure those of its first call."""
        self._step["num_gradients"] += 1
        found = []
        for name, each in _numbered(parameters_of(optimizer)):
            if each.grad is None:
                continue
            before, after, version = self._unclipped.get(id(each), (each.grad, None, 0))
            is_clipped = after is each.grad and version == each.grad._version
            found.append((name, before if is_clipped else each.grad))
            # one number rounded so coarsely is often the same by chance
            if not each.grad.is_sparse and torch.finfo(each.dtype).eps < self._coarse:
                grad = _local(each.grad)
                noise = 1 + self._coarse * (2 * torch.randint(2, grad.shape, generator=self._nudges) - 1).to(grad)
                for tensor in (grad, _local(found[-1][1]))[: 1 + is_clipped]:
                    tensor.mul_(noise)
        if self._step["num_gradients"] == 1:
            scale = getattr(optimizer, "grad_scale", None)  # of a GradScaler that leaves unscaling to the step
            self._step["gradient"] = _copies((name, each if scale is None else each / scale) for name, each in found)

    def _after(self, optimizer: Optimizer) -> None:
        step, weights = self._step, parameters_of(optimizer)
        self._num_begun += 1
        state = _state(optimizer, weights)
        tensors = {f"{place} {key}": each for place, key, value in state if (each := _state_tensor(value)) is not None}
        step |= {
            "gradient": step.get("gradient", {}),
            "after": _copies(_numbered(weights)),
            "state": _copies(tensors.items()),
        }
        line = {name: step[name] for name in ("optimizer", "number", "random")}
        if self._control is not None:
            line["calls"], self._control.calls = self._control.calls, []
        path = (self._base or self._directory) / self._rank / f"{step['optimizer']}-{step['number']}.pt"
        if self._base is None:
            held = [each for each in state if not isinstance(each[2], torch.Tensor)]
            torch.save({**step, "held": held}, path)
        elif path.exists():
            base = torch.load(path, weights_only=True)
            if self._nudges is not None:
                line["spreads"] = measure_step(base, step)
            else:
                line |= compare_step(base, step, self._roundings)
            known = {**base["after"], **base["state"]}
            for name, tensor in (*_numbered(weights), *tensors.items()):
                if name in known and known[name].shape == (local := _local(tensor)).shape:
                    local.copy_(known[name])
            for place, key, value in base["held"]:
                if place < len(weights):
                    optimizer.state[weights[place]][key] = value
        if self._nudges is not None:
            self._nudge(optimizer)
        self._write(line)

    def _around_clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(parameters, *args, **kwargs)
            weights = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            found = [(each, each.grad, each.grad.detach().clone()) for each in weights if each.grad is not None]
            result = original(weights, *args, **kwargs)
            self._unclipped |= {id(each): (before, after, after._version) for each, after, before in found}
            return result

        return clip

    def _around_autocast(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def enter(context: Any) -> Any:
            coarse = torch.finfo(context.fast_dtype).eps if context._enabled else 0.0
            if coarse > self._coarse:
                self._coarse = coarse
                for optimizer in list(self._moves):
                    self._guarded(self._nudge, optimizer)
            return original(context)

        return enter

    def _nudge(self, optimizer: Optimizer) -> None:
        """Move each weight by -1, 0 or 1 ulp, but whole numbers, which stand for something else than a measurement.

        Under autocast by an ulp of its type until the step: gradients are so coarse, updates of the weights are not.
        """
        moves = self._moves[optimizer] = []
        for weight in map(_local, parameters_of(optimizer)):
            moves.append(torch.zeros_like(weight))
            if weight.is_floating_point():
                signs = torch.randint(-1, 2, weight.shape, generator=self._nudges).to(weight)
                move = weight * signs * (weight != weight.round())
                weight.add_(move, alpha=torch.finfo(weight.dtype).eps)
                if self._coarse > torch.finfo(weight.dtype).eps:
                    weight.add_(moves[-1].add_(move, alpha=self._coarse))

    def _claim_rank(self) -> None:
        """Take a directory of this process's rank; that of another number if a process without ranks has taken it."""
        rank, world_size = rank_and_world_size(os.environ)[:2]
        while True:
            try:
                (self._directory / str(rank)).mkdir(parents=True)
                break
            except FileExistsError:
                rank = max(rank + 1, world_size)
        self._pid, self._rank = os.getpid(), str(rank)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / self._rank / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def read_lines(directory: Path) -> list[Step]:
    """Return the lines of one process; none if it has written none."""
    path = directory / LINES
    return [json.loads(line) for line in read_text(path, max_bytes=UNLIMITED).splitlines()] if path.exists() else []


def _numbered(weights: Iterable[torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """By place: wrappers and torch.compile rename weights."""
    return ((str(place), each) for place, each in enumerate(weights))


def _state(optimizer: Optimizer, weights: Sequence[torch.Tensor]) -> list[tuple[int, str, Any]]:
    """(place of the weight, key, value) of what an optimizer remembers."""
    kinds = (int, float, list, tuple, torch.Tensor, type(None))
    held = ((place, optimizer.state.get(weight, {})) for place, weight in enumerate(weights))
    return [(place, key, value) for place, state in held for key, value in state.items() if isinstance(value, kinds)]


def _state_tensor(value: Any) -> torch.Tensor | None:
    """A value to compare; a list, which LBFGS has, shows in the next step."""
    if isinstance(value, int | float):
        return torch.tensor(value, dtype=torch.float32 if isinstance(value, float) else torch.float64)
    return value if isinstance(value, torch.Tensor) else None


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor.detach()


def _copies(tensors: Named) -> dict[str, torch.Tensor]:
    return {name: (each.to_dense() if each.is_sparse else _local(each)).detach().clone() for name, each in tensors}


class Control:
    """Ties what sees the other rows of a batch by design: all rows get one mask, fixed statistics, one row of noise.

    Code that torch.compile has compiled is not reached, nor are dropout within LSTMs, and a program's own generators.
    """

    def __init__(self, ties: Sequence[str], step: Callable[[], int]) -> None:
        """Replace functions of torch. ties: lines of code whose noise is tied; step: returns the present step."""
        self.calls: list[tuple[str, list[int]]] = []
        """(what was called, shape of the input) since the last step."""
        self._ties, self._step = frozenset(ties), step
        functional: Any = torch.nn.functional
        ties_of: dict[str, Callable[..., Any]] = dict.fromkeys(DROPOUTS, self._dropout)
        ties_of |= {"batch_norm": self._batch_norm, "scaled_dot_product_attention": self._attention}
        for name, tie in ties_of.items():
            setattr(functional, name, self._replace(getattr(functional, name), tie))
        for name in NOISE:
            setattr(torch, name, self._replace(getattr(torch, name), self._noise))

    def _replace(self, original: Any, tie: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `tie` with the original and its arguments, by name where it has names."""
        names = inspect.signature(original).parameters if inspect.isfunction(original) else {}

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            given = {
                **{name: each.default for name, each in names.items()},
                **dict(zip(names, args, strict=False)),
                **kwargs,
            }
            return tie(original, given) if names else tie(original, args, kwargs)

        return replacement

    def _row(self, like: torch.Tensor, draw: Callable[..., torch.Tensor], *parts: object) -> torch.Tensor:
        """Random numbers for one row, which depend on the step, the row's shape and these parts."""
        seed = crc32(repr((self._step(), tuple(like.shape[1:]), *parts)).encode())
        return draw(like.shape[1:], generator=torch.Generator().manual_seed(seed)).to(like.device)

    def _dropout(self, original: Callable[..., Any], given: dict[str, Any]) -> Any:
        rows, p = given["input"], given["p"]
        if not given["training"] or not 0 < p < 1:
            return original(**given)
        self.calls.append(("dropout", list(rows.shape)))
        mask = ((self._row(rows, torch.rand, p) >= p) / (1 - p)).to(rows.dtype)
        return rows.mul_(mask) if given["inplace"] else rows * mask

    def _batch_norm(self, original: Callable[..., Any], given: dict[str, Any]) -> Any:
        if not given["training"]:
            return original(**given)
        rows = given["input"]
        self.calls.append(("batch_norm", list(rows.shape)))
        dtype = rows.dtype if given["running_mean"] is None else given["running_mean"].dtype
        zeros = torch.zeros(rows.shape[1], device=rows.device, dtype=dtype)
        return original(**{**given, "running_mean": zeros, "running_var": zeros + 1, "training": False})

    def _attention(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {
            **dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False)),
            **kwargs,
        }
        if given.get("dropout_p"):
            self.calls.append(("dropout", [*given["query"].shape[:-1], given["key"].shape[-2]]))
        return original(**{**given, "dropout_p": 0.0})

    def _noise(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made = original(*args, **kwargs)
        frame = sys._getframe(2)
        line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if kwargs.get("generator") is None and made.dim():
            self.calls.append((line, list(made.shape)))
            if line in self._ties:
                with torch.no_grad():
                    draw = torch.randn if original.__name__.startswith("randn") else torch.rand
                    made.copy_(self._row(made, draw, line).expand_as(made))
        return made
