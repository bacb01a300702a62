"""Options of `rlharness doctor`, and the findings for them.

options ─▶ every check of this host at once │ the layers of a bootstrap ─▶ findings
"""

import resource
from collections.abc import Sequence
from dataclasses import dataclass

from harness.bits.errors import UsageError
from harness.doctor.bootstrap import Bootstrap, find_layer, find_layer_of_job
from harness.doctor.checks import CHECKS, NUMERICS
from harness.doctor.children import MAX_ANSWER_BYTES, host_of, supervised_scratch
from harness.doctor.examination import Check, examine
from harness.doctor.gpus import check_gpus_for
from harness.doctor.rank_variables import find_job
from harness.machine.findings import Finding
from harness.process.invocation import Invocation
from harness.process.scratch import require_proc
from harness.process.supervisor_client import probe_backends

MIN_FILES = 128
MIN_FILE_BYTES = MAX_ANSWER_BYTES


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """Choice of checks."""

    numerics: bool = False
    """Whether torch's operations are probed too."""
    num_ranks: int | None = None
    """Ranks of the bootstrap that is tried (--distributed); 0 for the launcher's, None for none."""
    backend: str | None = None
    """Backend of these ranks; None for gloo."""

    def __post_init__(self) -> None:
        if self.numerics and self.num_ranks is not None:
            raise UsageError(
                "--numerics beside --distributed", legal="one of them", remedy="rlharness doctor --numerics by itself"
            )
        if self.backend is not None and self.num_ranks is None:
            raise UsageError("--backend without --distributed", legal="--backend beside --distributed")


def check_limits() -> None:
    """Raise UsageError if resource limits are too low for the checks themselves, or /proc is missing."""
    require_proc()
    num_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= num_files < MIN_FILES:
        raise UsageError(
            f"{num_files} files may be open at once (ulimit -n), and the checks need more",
            legal=f"{MIN_FILES} or more; Ray and data loaders need thousands",
            remedy="ulimit -n 65536; of a container: docker run --ulimit nofile=65536:65536",
        )
    size_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= size_bytes < MIN_FILE_BYTES:
        raise UsageError(
            f"a file may have {size_bytes} bytes at most (ulimit -f), and the checks need more",
            legal=f"{MIN_FILE_BYTES} or more; a checkpoint needs gigabytes",
            remedy="ulimit -f unlimited; of a container: docker run --ulimit fsize=-1:-1",
        )


async def diagnose(options: DoctorOptions, invocation: Invocation) -> tuple[Finding, ...]:
    """Return the findings of this host, or those of a bootstrap.

    Raises HarnessError for what the user can mend.
    """
    if options.num_ranks is not None:
        return await _walk_layers(invocation, options.num_ranks, options.backend or "gloo")
    checks: Sequence[Check] = CHECKS
    if options.numerics:
        invocation.note("checking torch's operations, which takes some seconds")
        checks = (*CHECKS, NUMERICS)
    with host_of(invocation) as host:
        return await examine(host, checks)


async def _walk_layers(invocation: Invocation, num_ranks: int, backend: str) -> tuple[Finding, ...]:
    """The layers of a bootstrap of `num_ranks` ranks, in their own order; InventoryError for NCCL on too few GPUs."""
    job = None if num_ranks else find_job(invocation.environ)
    if backend == "nccl" and job is None:
        await check_gpus_for(num_ranks, invocation.environ)
    with supervised_scratch(probe_backends(), invocation) as (supervisors, scratch):
        world = job.num_ranks if job else num_ranks
        bootstrap = Bootstrap(world, backend, invocation.environ, supervisors, scratch, invocation.note)
        return await (find_layer_of_job(bootstrap, job) if job else find_layer(bootstrap))
