"""The bundle of a finding: a directory with what is needed to look at it.

    step-20-before_step/
        manifest.json           the finding: differences, digests, ranks and hosts, what was repeated; of all ranks
        rank-0.safetensors      differing parameters of this rank: weight, gradient and moments; its random states

Every rank writes its own tensors where it runs; the first rank writes the manifest.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from harness.bits.files import write_replacing
from harness.recording.sentinel.replicas import Copy
from harness.recording.sentinel.sentinel_report import MANIFEST, Difference, Finding
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
