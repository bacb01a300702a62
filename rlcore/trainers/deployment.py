"""Where the models of a run are: in the controller's process, or in a group of workers.

plan ─▶ reserve ─▶ start workers with the level's variables ─▶ compare what is in effect in each ─▶ handle
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from rlcore.config import PpoSection, RunConfig
from rlcore.determinism import worker_environment
from rlcore.distributed.placement import make_plan
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
        plan = make_plan(section, roles_of(config), ray_nodes())
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
            own = report_of(ProcessName("controller", ("controller",), 0), environment)
            check_reports([own, *reports], level)
            try:
                yield group.handle
            except SystemExit:  # the recorder has the steps that it wanted: the run ends in order
                group.close()
                raise


def roles_of(config: RunConfig) -> tuple[str, ...]:
    """Return the roles that the models of a run have."""
    roles = {"policy": True, "critic": isinstance(config.algorithm, PpoSection), "reference": config.algorithm.kl_coef}
    return tuple(name for name, is_there in roles.items() if is_there)
