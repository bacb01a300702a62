"""Where the models of a run are: in the controller's process, or in a group of workers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rlcore.config import RunConfig
from rlcore.config_deployment import DeploymentSection
from rlcore.distributed.worker_group import start_group
from rlcore.errors import InvalidValueError
from rlcore.trace import Recorder, SharedRecorder
from rlcore.trainers.worker import ModelWorker


@contextmanager
def deployed(config: RunConfig, level: str, length: int, recorder: Recorder) -> Iterator[ModelWorker | None]:
    """Hold the workers of the models, as a handle; None if models are in this process.

    The workers end with this context, and with this process, however that ends. `length` is the longest sequence of
    the run. Raises InvalidValueError, LevelError, WorkerError, WorkerDiedError.
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
    openers = recorder.share(section.num_ranks)
    size = section.num_ranks
    with (
        _session(section),
        start_group(
            ModelWorker, config, level, length, openers, role="models", size=size, backend=section.backend
        ) as group,
    ):
        yield group.handle


def _session(section: DeploymentSection) -> AbstractContextManager[None]:
    """Return what holds Ray, if the workers run there."""
    if section.backend != "ray":
        return nullcontext()
    try:
        from rlcore.distributed.ray_session import ray_session  # only where it is asked for
    except ImportError:
        raise InvalidValueError(
            "deployment.backend is ray, which is not installed",
            legal="in_process, processes",
            remedy="pip install 'rlharness[ray]'",
        ) from None
    return ray_session(section.address, num_cpus=section.num_ranks)
