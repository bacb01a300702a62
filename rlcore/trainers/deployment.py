"""Where the models of a run are: in the controller's process, or in a group of workers.

plan ─▶ reserve ─▶ start workers with the level's variables ─▶ compare what is in effect in each ─▶ handle
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from harness.bits.levels import MOVE_BITS
from rlcore.config import DeploymentSection, PpoSection, RunConfig
from rlcore.determinism import worker_environment
from rlcore.distributed.placement import Node, Plan, Ranks, make_plan
from rlcore.distributed.process_report import ProcessName, ProcessReport, check_reports, report_of
from rlcore.errors import InvalidValueError
from rlcore.log import Recorder, SharedRecorder

if TYPE_CHECKING:
    from rlcore.trainers.worker import ModelWorker

GROUP = "models"
"""Role of the group, and name of its processes in reports."""
Say = Callable[[str], None]


@contextmanager
def deployed(
    config: RunConfig, level: str, length: int, recorder: Recorder, say: Say = lambda line: None
) -> "Iterator[ModelWorker | None]":
    """Hold the workers of the models, as a handle; None if models are in this process.

    The workers end with this context, and with this process, however that ends. `length` is the longest sequence of
    the run. Raises InvalidValueError, LevelError, PlacementError, WorkerError, WorkerDiedError.
    """
    section = config.deployment
    if section.backend == "in_process":
        yield None
        return
    if not isinstance(recorder, SharedRecorder):
        raise InvalidValueError(
            f"deployment.backend {section.backend!r} with a recorder of one process ({type(recorder).__name__})",
            legal="in_process, or a recorder with a method `share`",
        )
    try:
        from rlcore.distributed.ray_cluster import ray_nodes, ray_session, reserve  # only where it is asked for
        from rlcore.distributed.worker_group import start_group
    except ImportError:
        raise InvalidValueError(
            "deployment.backend is ray, which is not installed",
            legal="in_process",
            remedy="pip install 'rlharness[ray]'",
        ) from None
    from rlcore.trainers.worker import ModelWorker  # with torch.distributed, whose import takes seconds

    environment = worker_environment(level, os.environ)
    with ray_session(section.address, num_cpus=section.num_ranks):
        plan = plan_of(section, roles_of(config), ray_nodes())
        for line in plan.lines():
            say(line)
        openers = recorder.share(section.num_ranks)
        with (
            reserve(plan, timeout_s=section.timeout_s, say=say) as reservation,
            start_group(
                ModelWorker,
                *(config, level, length, openers),
                role=GROUP,
                size=section.num_ranks,
                reservation=reservation,
                environment=environment,
                start_timeout_s=section.timeout_s,
            ) as group,
        ):
            reports = cast(list[ProcessReport], group.handle.report())
            check_reports([_own_report(environment), *reports], level, environment)
            try:
                yield group.handle
            except SystemExit:  # the recorder has the steps that it wanted: the run ends in order
                group.close()
                raise


def roles_of(config: RunConfig) -> tuple[str, ...]:
    """Return the roles that the models of a run have."""
    roles = {"policy": True, "critic": isinstance(config.algorithm, PpoSection), "reference": config.algorithm.kl_coef}
    return tuple(name for name, is_there in roles.items() if is_there)


def plan_of(section: DeploymentSection, roles: Sequence[str], nodes: Sequence[Node]) -> Plan:
    """Spread the ranks over nodes; every rank has all roles. Raises PlacementError, InvalidValueError."""
    ranks = Ranks(
        num_ranks=section.num_ranks, num_nodes=section.num_nodes, gpus=section.gpus_per_rank, cpus=section.cpus_per_rank
    )
    return make_plan(ranks, roles, nodes)


def _own_report(environment: Mapping[str, str]) -> ProcessReport:
    """Return what torch says in this process, with the variables that it gives to the others."""
    own = report_of(ProcessName("controller", ("controller",), 0))
    kept = {name: value for name, value in own.values.items() if name not in MOVE_BITS}
    return replace(own, values={**kept, **environment})
