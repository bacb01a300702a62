"""The sentinel: replicas that must agree compare digests around the steps of optimizers.

At a step of the cadence, ranks compare all they hold before it, gradients and training flags included, and weights and
moments after it. If they differ, a step that was not made is not applied, and every rank ends.

    summaries ─▶ equal: done
        └─▶ tables ─▶ tensors into the bundle ─▶ manifest ─▶ every rank ends

A closure computes gradients within the step; they are compared after its first call. Hooks read, and write nothing.
All ranks decide from the same gathered values, over a Gloo group of the sentinel's own, so that no collective of the
program is delayed or reordered. A rank that has died is noticed by its closed connection; one that does not come is
waited for as long as the program's own collectives wait.

    step-20-before_step/
        manifest.json           the finding: differences, digests, ranks and hosts
        rank-0.safetensors      differing parameters of this rank: weight, gradient and moments; its random states

DistributedDataParallel      all ranks of its process group
reduced by all_reduce        the ranks of that group, once the program has reduced a parameter's gradient itself
DTensor (FSDP2, HSDP, TP)    the ranks of its mesh that hold the same shard
everything else              unknown: ranks may differ on purpose, and nothing is compared

With parameters go the training flags and buffers of their module. A buffer counts where ranks were seen to share it:
batch statistics are a rank's own.
"""

import atexit
import inspect
import os
import platform
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from xxhash import xxh3_128_hexdigest

from harness.bits.errors import UsageError
from harness.bits.files import write_replacing
from harness.recording.hooks import CompiledSteps, hook_steps, look_at_calls
from harness.recording.names import ParameterNames, living_modules, parameters_of, unwrapped
from harness.recording.notices import say
from harness.recording.program_state import is_used
from harness.recording.run_spec import ReplicasDiffer
from harness.recording.sentinel_report import BUNDLES, MANIFEST, Difference, Finding, Location, Moment, finding_line
from harness.recording.tensors import digest_placed, strided_parts, tensor_bytes
from harness.trace.format import RecordedValue, Scope, write_tensors

NOTHING_TO_COMPARE = (
    "sentinel: nothing to compare: no parameter of this optimizer is in a DistributedDataParallel, is a DTensor"
    " (fully_shard) or has its gradient reduced by torch.distributed.all_reduce; declare replicas with"
    " harness.recording.watch_replicas"
)
ALL_REDUCE = inspect.signature(distributed.all_reduce) if distributed.is_available() else inspect.Signature()
COMPILED = "sentinel: torch.compile has compiled an optimizer's step, and compiled steps are not compared"
MAX_BYTES = 2**30
"""Of the tensors that a rank keeps; further ones are left out, and their digests stand in the manifest."""
MAX_DIFFERENCES = 64
"""So many differences stand in a manifest."""
WEIGHT, GRADIENT, MOMENT, BUFFER, FLAG = "weight", "gradient", "moment", "buffer", "training flag of"
Ranks = tuple[int, ...]


class Key(NamedTuple):
    """What a digest is of."""

    kind: str
    """weight, gradient, moment, buffer or training flag."""
    name: str
    replicas: Ranks
    """Ranks whose digests must be equal, in order."""


class Copy(NamedTuple):
    """What this rank holds of one tensor."""

    key: Key
    domain: Ranks
    """Ranks that compare it together: of the process group or the mesh."""
    local: torch.Tensor
    """Memory of this rank."""


Table = Mapping[Key, str]
"""Digest of each tensor of a rank."""


class Replicas:
    """Knows the replicas of parameters; looks for modules once for each new set of parameters."""

    def __init__(self) -> None:
        self._names = ParameterNames()
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], Ranks]] = {}
        """Ranks by the id of a parameter; none of a DTensor, whose mesh says it, and of one that is unknown."""
        self.reduced: list[tuple[int, int, Ranks]] = []
        """(address, elements, ranks) of the tensors that the program reduced since the last step."""
        self._unlike: set[str] = set()
        """Names of buffers that are each rank's own."""
        self._equal: dict[str, str] = {}
        """By the name of a buffer, the first digest that all ranks had of it."""
        self._shared: set[str] = set()
        """Names of buffers that were equal with other values too."""

    def declare(self, parameters: Sequence[torch.Tensor], ranks: Ranks) -> None:
        """Have these parameters compared among these ranks, also without a wrapper."""
        self._known |= {id(each): (weakref.ref(each), ranks) for each in parameters}

    def _find_reduced(self, parameters: Sequence[torch.Tensor]) -> None:
        """Learn whose gradients were reduced, one by one or as one flat tensor of all."""
        unknown = [each for each in parameters if self._ranks(each) == () and not is_placed(each)]
        gradients = [(each, each.grad) for each in unknown if each.grad is not None]
        num_elements = sum(each.numel() for each, _ in gradients)
        for address, size, ranks in self.reduced:
            found = [e for e, grad in gradients if size == num_elements or address == _address(grad)]
            self.declare(found, ranks)

    def admitted(self, table: Table, found: Sequence[Difference]) -> list[Difference]:
        """Return the differences that count. All ranks decide alike.

        A buffer counts that has been equal with several values, or that some ranks hold as all did: what all have
        written since, each in its own way, is of a rank's own batch.
        """
        differing = {each.name: each for each in found if each.kind == BUFFER}
        for key, digest in table.items():
            if key.kind == BUFFER and key.name not in differing and self._equal.setdefault(key.name, digest) != digest:
                self._shared.add(key.name)
        unshared = {name: each.digests.values() for name, each in differing.items() if name not in self._shared}
        self._unlike |= {name for name, digests in unshared.items() if self._equal.get(name) not in digests}
        return [each for each in found if each.kind != BUFFER or each.name not in self._unlike]

    def copies(self, optimizer: Optimizer, kinds: Sequence[str]) -> list[Copy]:
        """Return the tensors of an optimizer that are to be compared, in the order of its parameters."""
        parameters = parameters_of(optimizer)
        self._names.assign(parameters)
        if unknown := [each for each in parameters if self._ranks(each) is None]:
            wrapped = _wrapped_parameters()
            self._known |= {id(each): (weakref.ref(each), wrapped.get(id(each), ())) for each in unknown}
        self._find_reduced(parameters)
        of_modules = [
            copy
            for _, root in (self._names.trained() if FLAG in kinds else ())
            for domain in [self._domain(root)]
            for kind, name, tensor in _parts(root)
            if name not in self._unlike
            for copy in _copies(kind, name, tensor, tensor, domain)
        ]
        return of_modules + [
            copy
            for parameter in parameters
            for kind, name, tensor in _tensors(optimizer, parameter, self._names.name(parameter) or "", kinds)
            for copy in _copies(kind, name, tensor, parameter, self._ranks(parameter) or ())
        ]

    def _domain(self, root: torch.nn.Module) -> Ranks:
        """The ranks that hold copies of a module's parameters; none if they are not the same for all."""
        found = {
            _ranks_of(each.device_mesh) if is_placed(each) else self._ranks(each) or ()  # type: ignore[attr-defined]
            for each in root.parameters()
            if each.requires_grad
        }
        return next(iter(found)) if len(found) == 1 else ()

    def _ranks(self, parameter: torch.Tensor) -> Ranks | None:
        reference, ranks = self._known.get(id(parameter), (None, ()))
        return ranks if reference is not None and reference() is parameter else None


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _wrapped_parameters() -> dict[int, Ranks]:
    """Ranks of each parameter that a DistributedDataParallel averages the gradients of, by its id."""
    found: dict[int, Ranks] = {}
    for module in living_modules():
        if isinstance(module, DistributedDataParallel):
            ranks = tuple(sorted(distributed.get_process_group_ranks(module.process_group)))
            for name, parameter in module.module.named_parameters():
                if name not in module.parameters_to_ignore:
                    found[id(parameter)] = ranks
    return found


def _parts(root: torch.nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """The training flags and buffers below a module; without statistics that each rank takes of its own batch."""
    for dotted, module in root.named_modules():
        prefix = unwrapped(f"{dotted}.")
        yield FLAG, prefix.removesuffix(".") or type(module).__name__, torch.tensor(module.training)
        has_statistics = isinstance(module, _NormBase) and not isinstance(module, torch.nn.SyncBatchNorm)
        for key, buffer in module.named_buffers(recurse=False) if not has_statistics else ():
            yield BUFFER, f"{prefix}{key}".removeprefix("."), buffer


def _tensors(
    optimizer: Optimizer, parameter: torch.Tensor, name: str, kinds: Sequence[str]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    if WEIGHT in kinds:
        yield WEIGHT, name, parameter
    if GRADIENT in kinds and parameter.grad is not None:
        yield GRADIENT, name, parameter.grad
    for key, value in optimizer.state.get(parameter, {}).items() if MOMENT in kinds else ():
        if isinstance(value, torch.Tensor | int | float):
            yield MOMENT, f"{name} {key}", torch.as_tensor(value)


def _copies(kind: str, name: str, tensor: torch.Tensor, parameter: torch.Tensor, ranks: Ranks) -> list[Copy]:
    """What is held of a tensor; nothing where no other rank is known to hold it too."""
    domain = replicas = ranks
    placed: Any = next((each for each in (tensor, parameter) if is_placed(each)), None)
    local: torch.Tensor = placed.to_local() if placed is tensor else tensor  # type: ignore[attr-defined]
    if placed is not None:
        domain = replicas = _ranks_of(placed.device_mesh)
        if placed is tensor or tensor.numel() != 1:  # else the number of steps, beside moments that are placed
            replicas = _ranks_of(placed.device_mesh, placed.placements)
    if not replicas or local.is_meta or (local.nbytes and not local.untyped_storage().nbytes()):
        return []
    return [Copy(Key(kind, name, replicas), domain, local)]


def is_placed(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor; a program that has none does not import their module."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


@cache
def _ranks_of(mesh: Any, placements: Sequence[Any] | None = None) -> Ranks:
    """All ranks of a mesh; with placements, those that hold the same elements as this one, none outside of the mesh."""
    at = mesh.get_coordinate()
    if placements is not None and at is None:
        return ()
    index = tuple(slice(None) if each.is_replicate() else at[dim] for dim, each in enumerate(placements or ()))
    return tuple(sorted(mesh.mesh[index].flatten().tolist()))


# ---------------------------------------------------------------------------------------------------------- comparison


def digests_of(copies: Sequence[Copy]) -> dict[Key, str]:
    """Return the digest of what this rank holds of each tensor that others hold too, with its dtype and shape."""
    shared = [copy for copy in copies if len(copy.key.replicas) > 1]
    parts = [(copy.key, suffix, part) for copy in shared for suffix, part in strided_parts(copy.local)]
    found: dict[Key, str] = {}
    for (key, suffix, _), seen in zip(parts, digest_placed([part for *_, part in parts]), strict=True):
        text = f"{seen.dtype} {list(seen.shape)} {seen.algorithm} {bytes(seen.digest).hex()}"
        found[key._replace(name=key.name + suffix)] = text
    return found


def summarize(table: Table) -> dict[Ranks, str]:
    """Return one digest for each set of replicas.

    Names, kinds and replica sets are part of it, in order: two equal changes, or two tensors that were exchanged, do
    not cancel.
    """
    texts: dict[Ranks, list[str]] = {}
    for key, digest in table.items():
        texts.setdefault(key.replicas, []).append(f"{key.kind} {len(key.name)} {key.name} {digest}\n")
    return {replicas: xxh3_128_hexdigest("".join(each).encode()) for replicas, each in texts.items()}


def is_equal(summaries: Mapping[int, Mapping[Ranks, str]]) -> bool:
    """Return whether all replicas have equal digests, from the summaries by rank."""
    pairs = [pair for summary in summaries.values() for pair in summary.items()]
    return all(
        summaries[rank].get(replicas) == digest for replicas, digest in pairs for rank in replicas if rank in summaries
    )


def differences(tables: Mapping[int, Table]) -> list[Difference]:
    """Return the tensors of which replicas hold different bits, in the order of the first rank that has them.

    A rank without a tensor, such as one whose optimizer keeps only a part of the moments, has no say about it.
    """
    found = []
    for key in dict.fromkeys(key for table in tables.values() for key in table):
        digests = {rank: tables[rank][key] for rank in key.replicas if rank in tables and key in tables[rank]}
        if len(set(digests.values())) > 1:
            found.append(Difference.of(key.kind, key.name, digests))
    return found


class PeerLost(Exception):
    """Not every rank came to a comparison: one died, or does other work."""

    def __init__(self, error: Exception) -> None:
        lines = str(error).strip().splitlines() or ["no reason given"]
        super().__init__(f"{type(error).__name__}: {lines[0]}")


class Peers:
    """The ranks of one domain, which meet when this is made; PeerLost if a rank does not come, here or later."""

    def __init__(self, ranks: Ranks, timeout_s: float | None) -> None:
        self.ranks = ranks
        world: Any = distributed.group.WORLD  # its collectives wait as long
        options = world._get_backend(world._device_types[0]).options
        self._timeout = options._timeout if timeout_s is None else timedelta(seconds=timeout_s)
        try:
            self._group = distributed.new_group(
                list(ranks), timeout=self._timeout, backend="gloo", use_local_synchronization=True
            )
        except (RuntimeError, ValueError) as error:
            raise PeerLost(error) from None
        self.locations: tuple[Location, ...] = tuple(self.gather(this_location()).values())

    def gather(self, value: Any) -> dict[int, Any]:
        """Return the value of each rank, by rank."""
        answers: list[Any] = [None] * len(self.ranks)
        try:
            distributed.monitored_barrier(group=self._group, timeout=self._timeout, wait_all_ranks=True)
            distributed.all_gather_object(answers, value, group=self._group)
        except RuntimeError as error:  # torch.distributed.DistError is one
            raise PeerLost(error) from None
        return dict(zip(self.ranks, answers, strict=True))


def this_location() -> Location:
    """Where this process runs."""
    device = "CPU"
    if is_used():
        index = torch.cuda.current_device()
        properties: Any = torch.cuda.get_device_properties(index)
        device = f"GPU {index} {properties.name} {getattr(properties, 'uuid', '')}".strip()
    return Location(distributed.get_rank(), platform.node(), device)


# -------------------------------------------------------------------------------------------------------- the sentinel


@dataclass(slots=True)
class _Progress:
    """State of one optimizer."""

    num_steps: int = 0
    is_due: bool = False
    """Whether the present step is compared."""
    awaits_gradients: bool = False
    """Whether a closure has still to compute the gradients of the present step."""
    last_equal: int | None = None


class Sentinel:
    """Watches every optimizer of this process: steps 0, N, 2N, ... of each are compared; bundles go into `directory`.

    `timeout_s` is how long a rank waits for the others; None for the timeout of the program's own process group.
    """

    def __init__(self, every: int, directory: Path, timeout_s: float | None = None) -> None:
        self._every, self._directory, self._timeout_s = every, directory, timeout_s
        self.replicas = Replicas()
        self._progress: weakref.WeakKeyDictionary[Optimizer, _Progress] = weakref.WeakKeyDictionary()
        self._peers: dict[Ranks, Peers] = {}
        self._compiled = CompiledSteps()
        self._step = 0
        """Number of the present step among those of all optimizers."""
        self.problem = ""
        """Why it was switched off; empty while it watches."""
        self._is_off = self._has_warned = False

    def install(self) -> None:
        """Put the hooks in, once for a process."""
        hook_steps(
            lambda *step: self._guarded(self._before_step, *step),
            lambda *step: self._guarded(self._after_step, *step),
            lambda *step: self._guarded(self._after_closure, *step),
            self._compiled,
        )
        for module in (distributed, distributed.distributed_c10d):
            look_at_calls(module, "all_reduce", lambda *args, **named: self._guarded(self._note_reduced, args, named))
        atexit.register(lambda: say(COMPILED) if self._compiled.have_run else None)

    def _note_reduced(self, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Note what the program reduces itself, if it has memory of its own and this rank takes part."""
        given = ALL_REDUCE.bind_partial(*args, **named).arguments
        tensor, group = given["tensor"], given.get("group") or distributed.group.WORLD
        is_member = group is not distributed.GroupMember.NON_GROUP_MEMBER
        if is_member and tensor.layout is torch.strided and not is_placed(tensor):
            ranks = tuple(sorted(distributed.get_process_group_ranks(group)))
            self.replicas.reduced.append((_address(tensor), tensor.numel(), ranks))

    def stop(self) -> None:
        """Watch nothing any more."""
        self._is_off = True
        self._progress.clear()

    def _guarded(self, what: Callable[..., None], *arguments: Any) -> None:
        """Call one of the hooks. A lost rank, or a mistake, switches the sentinel off; the program continues."""
        if self._is_off:
            return
        try:
            with torch.no_grad():
                what(*arguments)
        except Exception as error:  # whatever it is: only a finding may end the program
            self.stop()
            is_lost = isinstance(error, PeerLost)
            lost = f"not every rank came to the comparison of step {self._step}: {error}"
            self.problem = lost if is_lost else f"{type(error).__name__}: {error}"
            say(f"sentinel switched off, the program continues: {self.problem}")

    def _before_step(self, optimizer: Optimizer, has_closure: bool) -> None:
        progress = self._progress.setdefault(optimizer, _Progress())
        progress.is_due = progress.num_steps % self._every == 0
        progress.awaits_gradients = has_closure and progress.is_due
        if progress.is_due:
            kinds = (FLAG, BUFFER, WEIGHT, MOMENT) if has_closure else (FLAG, BUFFER, WEIGHT, GRADIENT, MOMENT)
            self._check(optimizer, Moment.BEFORE_STEP, kinds)

    def _after_closure(self, optimizer: Optimizer) -> None:
        """Compare the gradients of the first call; later ones have other weights."""
        progress = self._progress[optimizer]
        if progress.awaits_gradients:
            progress.awaits_gradients = False
            self._check(optimizer, Moment.BEFORE_STEP, (GRADIENT,))

    def _after_step(self, optimizer: Optimizer) -> None:
        progress = self._progress[optimizer]
        progress.num_steps += 1
        if progress.is_due:
            self._check(optimizer, Moment.AFTER_STEP, (WEIGHT, MOMENT))
            progress.last_equal = self._step
        self.replicas.reduced.clear()
        self._step += 1

    def _check(self, optimizer: Optimizer, when: Moment, kinds: Sequence[str]) -> None:
        """Compare what an optimizer has of these kinds, in each domain."""
        copies = self.replicas.copies(optimizer, kinds)
        domains = sorted({each.domain for each in copies if len(each.domain) > 1})
        if not domains and not self._has_warned:
            self._has_warned = True
            if not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank()):
                say(NOTHING_TO_COMPARE)
        for domain in domains:
            if domain not in self._peers:
                self._peers[domain] = Peers(domain, self._timeout_s)
            last_equal = self._progress[optimizer].last_equal
            self._compare(when, self._peers[domain], [each for each in copies if each.domain == domain], last_equal)

    def _compare(self, when: Moment, peers: Peers, copies: Sequence[Copy], last_equal: int | None) -> None:
        """Compare the ranks of a domain at one point; ReplicasDiffer for a finding."""
        table = digests_of(copies)
        if is_equal(peers.gather(summarize(table))):
            self.replicas.admitted(table, ())
            return
        if not (found := self.replicas.admitted(table, differences(peers.gather(table)))):
            return  # ranks keep parts of the moments
        self._write_copies(when, copies, found)
        suspected = {rank for each in found for rank in each.suspects}
        suspects = tuple(each for each in peers.locations if each.rank in suspected)
        shown = tuple(found[:MAX_DIFFERENCES])
        finding = Finding(self._step, when, suspects, shown, len(found), last_equal, peers.locations)
        if distributed.get_rank() == peers.ranks[0]:
            self._tell(finding)
        peers.gather(None)  # until all have written
        raise ReplicasDiffer

    def _bundle(self, when: Moment) -> Path:
        directory = self._directory / BUNDLES / f"step-{self._step}-{when}"
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def _tell(self, finding: Finding) -> None:
        """Say the finding, and write its manifest."""
        say(finding_line(finding))
        try:
            bundle = self._bundle(finding.when)
            write_replacing(bundle / MANIFEST, finding.to_text())
            say(f"sentinel: bundle in {bundle}")
        except OSError as error:
            say(f"sentinel: the manifest of step {finding.step} cannot be written: {error.strerror}")

    def _write_copies(self, when: Moment, copies: Sequence[Copy], found: Sequence[Difference]) -> None:
        """Write what this rank holds of the differing parameters, and its random states."""
        wanted = {each.name.partition(" ")[0] for each in found}
        kept, num_bytes = [], 0
        for each in copies:
            if each.key.name.partition(" ")[0] in wanted and each.local.layout is torch.strided:
                num_bytes += each.local.nbytes
                if num_bytes > MAX_BYTES:
                    break
                kept.append(_recorded(each.key.kind, each.key.name, each.local))
        kept.append(_recorded("random", "random.torch", torch.get_rng_state()))
        states = torch.cuda.get_rng_state_all() if is_used() else []
        kept += [_recorded("random", f"random.cuda{index}", state) for index, state in enumerate(states)]
        rank = distributed.get_rank()
        try:
            write_tensors(self._bundle(when) / f"rank-{rank}.safetensors", kept)
        except OSError as error:
            say(f"sentinel: the tensors of rank {rank} cannot be written: {error.strerror}")


def _recorded(phase: str, name: str, tensor: torch.Tensor) -> tuple[RecordedValue, memoryview]:
    (seen,) = digest_placed([tensor])
    return RecordedValue(phase, name, 0, *seen.settled(), scope=Scope.PHYSICAL), tensor_bytes(tensor)


_running: list[Sentinel] = []


def start_sentinel(every: int, directory: Path, timeout_s: float | None = None) -> Sentinel:
    """Start the sentinel of this process; return the one that runs already."""
    if not _running:
        _running.append(Sentinel(every, directory, timeout_s))
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
    sentinel = start_sentinel(every, Path(directory).absolute(), timeout_s)
    if declared := list(parameters):
        if not (distributed.is_available() and distributed.is_initialized()):
            raise UsageError(
                "replicas are declared before torch.distributed is initialized",
                legal="replicas of an initialized process group",
                remedy="call init_process_group first",
            )
        sentinel.replicas.declare(declared, tuple(sorted(ranks or range(distributed.get_world_size()))))
