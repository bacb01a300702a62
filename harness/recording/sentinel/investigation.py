"""One comparison of the ranks of a domain: from the gather to the bundle of what differs.

    summaries ─▶ equal: done
        └─▶ tables ─▶ read again ─▶ equal: transient, the program continues
                          └─▶ tensors into the bundle ─▶ repeat ─▶ manifest ─▶ repaired, or every rank ends

All ranks decide from the same gathered values, and meet again before one of them continues or ends.

    step-20-before_step/
        manifest.json           the finding: differences, digests, ranks and hosts, what was repeated; of all ranks
        rank-0.safetensors      differing parameters of this rank: weight, gradient and moments; its random states

Every rank writes its own tensors where it runs; the first rank writes the manifest.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import distributed

from harness.bits.files import write_replacing
from harness.recording.notices import say
from harness.recording.random_states import read_states
from harness.recording.run_spec import ReplicasDiffer
from harness.recording.sentinel.comparison import Key, differences, is_equal, named_ranks, summarize
from harness.recording.sentinel.peers import Peers
from harness.recording.sentinel.repetition import KeptRandomStates, classify, probe_memory, write_again
from harness.recording.sentinel.replicas import Copy, digests_of
from harness.recording.sentinel.sentinel_report import (
    BUNDLES,
    MANIFEST,
    Difference,
    Fault,
    Finding,
    Moment,
    Repeated,
    bundle_name,
    finding_line,
)
from harness.recording.sentinel.windows import Change, split_changes
from harness.recording.sharded_digest import digest_placed
from harness.recording.tensors import tensor_bytes
from harness.trace.chain import RecordedValue, Scope
from harness.trace.tensor_file import write_tensors

MAX_BYTES = 2**30
"""Of the tensors that a rank keeps; further ones are left out, and their digests stand in the manifest."""


def write_manifest(directory: Path, finding: Finding) -> None:
    """Write the finding; OSError where it cannot be written."""
    directory.mkdir(parents=True, exist_ok=True)
    write_replacing(directory / MANIFEST, finding.to_text())


def write_copies(
    directory: Path, rank: int, copies: Sequence[Copy], found: Sequence[Difference], states: Mapping[str, torch.Tensor]
) -> None:
    """Write what this rank holds of the differing parameters; OSError where it cannot be written."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {each.name.partition(" ")[0] for each in found}
    kept, num_bytes = [], 0
    for each in copies:
        if each.key.name.partition(" ")[0] not in wanted or each.local.layout is not torch.strided:
            continue
        num_bytes += each.local.nbytes
        if num_bytes > MAX_BYTES:
            break
        kept.append(_recorded(each.key.kind, each.key.name, each.local))
    kept += [_recorded("random", name, state) for name, state in states.items()]
    write_tensors(directory / f"rank-{rank}.safetensors", kept)


def _recorded(phase: str, name: str, tensor: torch.Tensor) -> tuple[RecordedValue, memoryview]:
    (seen,) = digest_placed([tensor])
    return RecordedValue(phase, name, 0, *seen, scope=Scope.PHYSICAL), tensor_bytes(tensor)


MAX_DIFFERENCES = 64
"""So many differences stand in a manifest."""
Tables = dict[int, dict[Key, str]]


@dataclass(frozen=True, slots=True)
class Repetition:
    """What can be repeated at this point of the program."""

    kind: Repeated
    repeat: Callable[[], None]
    unrecorded: Callable[[], AbstractContextManager[object]]
    """Pauses a recorder meanwhile."""


@dataclass(frozen=True, slots=True)
class Point:
    """Where in the program ranks compare."""

    step: int
    when: Moment
    last_equal_step: int | None
    directory: Path
    """The directory of bundles is made in it."""


class Investigation:
    """What the ranks of one domain compare at one point."""

    def __init__(self, point: Point, peers: Peers, read: Callable[[], Sequence[Copy]]) -> None:
        self._point, self._peers, self._read = point, peers, read
        self._bundle = point.directory / BUNDLES / bundle_name(point.step, point.when)
        self._copies: Sequence[Copy] = ()

    def run(self, changes: Sequence[Change], repetition: Repetition | None) -> list[Change]:
        """Compare; return what the program writes past torch. ReplicasDiffer for a finding that is not repaired."""
        self._copies = self._read()
        table = digests_of(self._copies)
        answers = self._peers.gather((summarize(table), list(changes)))
        alone, shared = split_changes({rank: held for rank, (_, held) in answers.items()})
        if alone:
            self._conclude(self._of_changes(alone))
        if not is_equal({rank: summary for rank, (summary, _) in answers.items()}):
            self._compare(self._peers.gather(table), repetition)
        return shared

    def _compare(self, first: Tables, repetition: Repetition | None) -> None:
        """Find what differs, and do what can be done again."""
        found = differences(first)
        if not found:  # ranks that keep different parts of the moments
            return
        second = self._peers.gather(digests_of(self._copies))
        if not differences(second):
            fault, ranks, is_repaired = classify(first, second, found)
            self._conclude(self._finding(found, ranks, fault, Repeated.READING, is_repaired=is_repaired))
            return
        self._write_copies(found)
        if repetition is None:
            fault, ranks = write_again(self._peers, self._copies, found)
            self._conclude(self._finding(found, ranks, fault, Repeated.WRITING))
            return
        problem = _attempt(repetition)
        self._copies = self._read()
        third = self._peers.gather(None if problem else digests_of(self._copies))
        if any(table is None for table in third.values()):
            self._conclude(self._finding(found, named_ranks(found), Fault.UNKNOWN, Repeated.NOTHING))
        fault, ranks, is_repaired = classify(first, third, found)
        self._conclude(self._finding(found, ranks, fault, repetition.kind, is_repaired=is_repaired))

    def _of_changes(self, alone: Mapping[int, Sequence[Change]]) -> Finding:
        """What single copies have changed on their own: each rank is sure of itself, and tries its memory."""
        found = [
            Difference(each.kind, each.name, {rank: each.after}, (rank,), each.since_step, each.before)
            for rank, changes in alone.items()
            for each in changes
        ]
        self._write_copies(found)
        own = {each[:2] for each in alone.get(distributed.get_rank(), ())}
        changed = [each for each in self._copies if each.is_single and each.key[:2] in own]
        holds = self._peers.gather(probe_memory(changed))
        fault = Fault.TRANSIENT if all(holds.values()) else Fault.PERSISTENT
        return self._finding(found, tuple(alone), fault, Repeated.WRITING)

    def _finding(
        self,
        found: Sequence[Difference],
        ranks: Sequence[int],
        fault: Fault,
        repeated: Repeated,
        *,
        is_repaired: bool = False,
    ) -> Finding:
        return Finding(
            step=self._point.step,
            when=self._point.when,
            suspects=tuple(each for each in self._peers.locations if each.rank in ranks),
            differences=tuple(found[:MAX_DIFFERENCES]),
            num_different=len({(each.kind, each.name) for each in found}),
            fault=fault,
            repeated=repeated,
            is_repaired=is_repaired,
            last_equal_step=self._point.last_equal_step,
            locations=self._peers.locations,
        )

    def _conclude(self, finding: Finding) -> None:
        """Write the manifest on the first rank, wait until all ranks have written, and end the program if need be."""
        own = {name: f"{algorithm} {digest.hex()}" for name, (algorithm, digest) in read_states().items()}
        finding = replace(finding, random_states=self._peers.gather(own))
        if distributed.get_rank() == self._peers.ranks[0]:
            say(finding_line(finding))
            try:
                write_manifest(self._bundle, finding)
                say(f"sentinel: bundle in {self._bundle}")
            except OSError as error:
                say(f"sentinel: the manifest of {self._bundle} cannot be written: {error.strerror}")
        self._peers.gather(None)
        if not finding.is_repaired:
            raise ReplicasDiffer

    def _write_copies(self, found: Sequence[Difference]) -> None:
        rank = distributed.get_rank()
        try:
            write_copies(self._bundle, rank, self._copies, found, KeptRandomStates().tensors)
        except OSError as error:
            say(f"sentinel: the tensors of rank {rank} cannot be written into {self._bundle}: {error.strerror}")


def _attempt(repetition: Repetition) -> str:
    """Repeat; return why that did not work, empty if it did."""
    try:
        with repetition.unrecorded():
            repetition.repeat()
    except Exception as error:  # whatever an optimizer or a closure raises: then nothing is known
        return f"{type(error).__name__}: {error}"
    return ""
