"""Compares replicas around the steps of optimizers, and ends the program where they differ.

| at a step of the cadence               | equal         | different                                              |
|---|---|---|
| before it: weights, gradients, moments | it is applied | the step is not applied, the program ends              |
| after it: weights, moments             | continues     | the step is repeated: equal → continues, else it ends  |

A closure computes gradients within the step; they are compared after its first call, and it is called again where they
differ. Hooks read, and write only after a difference was found.
"""

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed
from torch.optim import Optimizer

from harness.bits.errors import UsageError
from harness.recording.closures import Arguments, Closure, HookedClosure, closure_of, replace_closure
from harness.recording.compiled import CompiledSteps
from harness.recording.hooks import Stepping, hook_steps
from harness.recording.notices import say
from harness.recording.sentinel.investigation import Investigation, Point, Repetition
from harness.recording.sentinel.peers import PeerLost, Peers
from harness.recording.sentinel.repetition import KeptRandomStates, KeptStep
from harness.recording.sentinel.replicas import GRADIENT, MOMENT, WEIGHT, Copy, Replicas
from harness.recording.sentinel.sentinel_report import Moment, Repeated
from harness.recording.sentinel.windows import Windows

Ranks = tuple[int, ...]
NOTHING_TO_COMPARE = (
    "sentinel: nothing to compare: no parameter of this optimizer is in a DistributedDataParallel or is a DTensor"
    " (fully_shard); declare replicas with harness.recording.watch_replicas"
)
COMPILED = "sentinel: torch.compile has compiled an optimizer's step, and compiled steps are not compared"


@dataclass(frozen=True, slots=True)
class SentinelConfig:
    """How replicas are watched."""

    every: int
    """Cadence in steps of an optimizer: steps 0, N, 2N, ... are compared."""
    directory: Path
    """The directory of bundles is made in it."""
    timeout_s: float | None = None
    """How long a rank waits for the others; None for the timeout of the program's own process group."""


@dataclass(slots=True)
class _Progress:
    """State of one optimizer."""

    windows: Windows
    has_single_copies: bool = True
    """Whether it has tensors that no other rank holds; asked at every step of the cadence."""
    num_steps: int = 0
    is_due: bool = False
    """Whether the present step is compared."""
    kept: KeptStep | None = None
    random_states: KeptRandomStates | None = None
    """Before the closure's first call of the present step."""
    last_equal: int | None = None


class Sentinel:
    """Watches every optimizer of this process."""

    def __init__(self, config: SentinelConfig, rest: Callable[[bool], None] = lambda _: None) -> None:
        self._config = config
        self._rest = rest
        """Pauses and resumes the recorder."""
        self.replicas = Replicas()
        self._progress: WeakKeyDictionary[Optimizer, _Progress] = WeakKeyDictionary()
        self._peers: dict[Ranks, Peers] = {}
        self._stepping = Stepping()
        self._step = 0
        """Number of the present step among those of all optimizers."""
        self.problem = ""
        """Why it was switched off; empty while it watches."""
        self._is_off = False
        self._has_warned = False
        self._compiled = CompiledSteps()

    def install(self) -> None:
        """Put the hooks in, once for a process."""
        hook_steps(self._begin, self._end, self._stepping, self._compiled)
        atexit.register(self._say_unreported)

    def stop(self) -> None:
        """Watch nothing any more."""
        self._is_off = True
        self._progress.clear()
        self._stepping.optimizers.clear()

    # ------------------------------------------------------------------------------------------------------- hooks

    def _begin(self, optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments | None:
        if self._is_off:
            return None
        self._stepping.optimizers.append(optimizer)
        if len(self._stepping.optimizers) > 1:  # a class whose step calls that of its base
            return None
        closure = closure_of(args, kwargs)
        self._guarded(self._before_step, optimizer, closure is not None)
        progress = self._progress.get(optimizer)
        if closure is None or progress is None or not progress.is_due:
            return None
        hooked = HookedClosure(
            closure,
            lambda: self._guarded(self._before_closure, optimizer),
            lambda has_returned: self._guarded(self._after_closure, optimizer, closure, has_returned),
        )
        return replace_closure(args, kwargs, hooked)

    def _end(self, optimizer: Optimizer) -> None:
        if self._is_off or not self._stepping.optimizers:
            return
        self._stepping.optimizers.pop()
        if not self._stepping.optimizers:
            self._guarded(self._after_step, optimizer)
            self._step += 1

    def _guarded(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call one of the hooks. A lost rank, or a mistake, switches the sentinel off; the program continues."""
        if self._is_off:
            return
        try:
            with torch.no_grad():
                what(*arguments)
        except PeerLost as error:
            self._switch_off(f"not every rank came to the comparison of step {self._step}: {error}")
        except Exception as error:  # whatever it is: only a finding may end the program
            self._switch_off(f"{type(error).__name__}: {error}")

    def _switch_off(self, why: str) -> None:
        self.stop()
        self.problem = why
        say(f"sentinel switched off, the program continues: {why}")

    # ----------------------------------------------------------------------------------------------------- the steps

    def _before_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        progress = self._progress.setdefault(optimizer, _Progress(Windows()))
        progress.is_due = progress.num_steps % self._config.every == 0
        if progress.has_single_copies:
            progress.windows.look(self.replicas.copies(optimizer, (WEIGHT, MOMENT)))
        if progress.is_due:
            self._check(optimizer, Moment.BEFORE_STEP, (WEIGHT, MOMENT) if has_closure else (WEIGHT, GRADIENT, MOMENT))
            progress.kept = None if has_closure else KeptStep(optimizer)

    def _before_closure(self, optimizer: Optimizer) -> None:
        progress = self._progress[optimizer]
        if progress.is_due and progress.random_states is None:
            progress.random_states = KeptRandomStates()

    def _after_closure(self, optimizer: Optimizer, closure: Closure, has_returned: bool) -> None:
        """Compare the gradients of the first call; later ones have other weights."""
        if not has_returned:  # the step ends with it
            self._stepping.optimizers.clear()
        progress = self._progress[optimizer]
        states = progress.random_states
        if not has_returned or not progress.is_due or states is None:
            return
        progress.is_due = False

        def repeat() -> None:
            states.restore()
            with torch.enable_grad():
                closure()

        self._check(optimizer, Moment.BEFORE_STEP, (GRADIENT,), Repetition(Repeated.CLOSURE, repeat, self._resting))
        progress.is_due = True
        progress.random_states = None

    def _after_step(self, optimizer: Optimizer) -> None:
        progress = self._progress[optimizer]
        progress.num_steps += 1
        if progress.is_due:
            kept, progress.kept = progress.kept, None
            repetition = Repetition(Repeated.OPTIMIZER_STEP, kept.repeat, self._resting) if kept is not None else None
            self._check(optimizer, Moment.AFTER_STEP, (WEIGHT, MOMENT), repetition)
            progress.last_equal = self._step
        if progress.is_due or progress.has_single_copies:
            copies = self.replicas.copies(optimizer, (WEIGHT, MOMENT))
            progress.has_single_copies = any(each.is_single for each in copies)
            progress.windows.note(self._step, copies)

    def _check(
        self, optimizer: Optimizer, when: Moment, kinds: Sequence[str], repetition: Repetition | None = None
    ) -> None:
        """Compare what an optimizer has of these kinds, in each domain."""
        domains = sorted({each.domain for each in self.replicas.copies(optimizer, kinds) if len(each.domain) > 1})
        if not domains and not self._has_warned:
            self._has_warned = True
            if not _rank():
                say(NOTHING_TO_COMPARE)
        progress = self._progress[optimizer]
        for domain in domains:
            point = Point(self._step, when, progress.last_equal, self._config.directory)

            def read(domain: Ranks = domain) -> list[Copy]:
                return [each for each in self.replicas.copies(optimizer, kinds) if each.domain == domain]

            written = Investigation(point, self._met(domain), read).run(progress.windows.held(domain), repetition)
            progress.windows.ignore(written)

    def _met(self, domain: Ranks) -> Peers:
        """The ranks of a domain, after they have met."""
        if domain not in self._peers:
            self._peers[domain] = Peers(domain, self._config.timeout_s)
            self._peers[domain].meet()
        return self._peers[domain]

    @contextmanager
    def _resting(self) -> Iterator[None]:
        """Pause the recorder and this sentinel: what is repeated is no step of the program."""
        self._rest(True)
        self._is_off = True
        try:
            yield
        finally:
            self._is_off = False
            self._rest(False)

    def _say_unreported(self) -> None:
        """Say at the end of the process what it found and no comparison followed; and what it could not watch."""
        if self._compiled.have_run:
            say(COMPILED)
        rank = _rank()
        for progress in self._progress.values():
            for each in progress.windows.unreported():
                say(
                    f"sentinel: {each.kind} {each.name} of this process{'' if rank is None else f', rank {rank},'}"
                    f" changed after step {each.since_step} without a write; no comparison followed"
                )


def _rank() -> int | None:
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None


_running: list[Sentinel] = []


def start_sentinel(config: SentinelConfig, rest: Callable[[bool], None] = lambda _: None) -> Sentinel:
    """Start the sentinel of this process; return the one that runs already."""
    if not _running:
        _running.append(Sentinel(config, rest))
        _running[0].install()
    return _running[0]


def declare_replicas(
    parameters: Iterable[torch.Tensor],
    *,
    every: int,
    directory: str | os.PathLike[str],
    ranks: Sequence[int] | None,
    timeout_s: float | None,
) -> None:
    """Start the sentinel, and have it compare these parameters too; what the arguments mean, `watch_replicas` says."""
    if every < 1:
        raise UsageError(f"every={every}", legal="a number of optimizer steps, 1 or more", remedy="every=10")
    sentinel = start_sentinel(SentinelConfig(every, Path(directory).absolute(), timeout_s))
    if declared := list(parameters):
        if not (distributed.is_available() and distributed.is_initialized()):
            raise UsageError(
                "replicas are declared before torch.distributed is initialized",
                legal="replicas of an initialized process group",
                remedy="call init_process_group first",
            )
        sentinel.replicas.declare(declared, tuple(sorted(ranks or range(distributed.get_world_size()))))
