"""Where the models of a run train: settings that move no bit at level invariant. No torch."""

from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from rlcore.config_base import Positive, Ranks, Section
from rlcore.errors import InvalidValueError


class DeploymentSection(Section):
    """The processes in which models train, and how their weights are divided."""

    backend: Literal["in_process", "ray"] = "in_process"
    """In the process of the controller, or in actors of Ray."""
    num_ranks: Ranks = 1
    """Processes that train together; with in_process so many workers are simulated, one after another."""
    sharding: Literal["none", "full", "hybrid"] = "none"
    """Every rank has all weights, or a shard of them (FSDP2), or groups of ranks have a copy each, sharded."""
    num_copies: Positive = 1
    """Of hybrid: copies of the weights; num_ranks / num_copies ranks share one."""
    address: str = ""
    """Of ray: address of a cluster, or auto; empty: a local one for this run."""
    num_nodes: Positive | None = None
    """Of ray: nodes that share the ranks equally; None: as few as have room."""
    gpus_per_rank: Annotated[int, Field(ge=0)] = 0
    """Of ray: GPUs that a rank reserves; 1 for models on cuda."""
    cpus_per_rank: Annotated[float, Field(gt=0)] = 1.0
    """Of ray: CPUs that a rank reserves."""
    on_worker_death: Literal["fail", "restart"] = "fail"
    """What becomes of the run if a process of the models dies: its end, or a restart from the newest checkpoint."""
    max_restarts: Annotated[int, Field(ge=0)] = 3
    """Restarts before a death ends the run."""
    sentinel_every: Annotated[int, Field(ge=0)] = 10
    """Updates between two comparisons of ranks that must hold equal bits; 0: they are never compared."""
    offload: Annotated[tuple[Literal["policy", "critic", "reference"], ...], Strict(False)] = ()
    """Models that leave their device while others need it: all while completions are sampled, the reference also while
    the policy learns."""
    offload_directory: str = ""
    """Of offload: a directory on a disk, which takes their weights and optimizers; empty: the memory of the host."""
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that a rank waits for another, and a start for its processes."""

    @model_validator(mode="after")
    def _fits(self) -> "DeploymentSection":
        if self.sharding == "hybrid" and (self.num_copies == 1 or self.num_ranks % self.num_copies):
            copies = [str(n) for n in range(2, self.num_ranks + 1) if self.num_ranks % n == 0]
            raise InvalidValueError(
                f"deployment.num_copies is {self.num_copies}, of {self.num_ranks} ranks with sharding hybrid",
                legal=", ".join(copies) or "none: hybrid needs two ranks or more",
            )
        if self.offload_directory and not self.offload:
            raise InvalidValueError(
                f"deployment.offload_directory is {self.offload_directory!r}, which has no effect here",
                remedy="deployment.offload: [policy], or leave it out",
            )
        # With in_process every setting is legal: a run of any deployment is repeated there by that setting alone.
        if self.backend == "ray" and self.num_copies != 1 and self.sharding != "hybrid":
            raise InvalidValueError(
                f"deployment.num_copies is {self.num_copies}, which has no effect here",
                remedy="deployment.sharding: hybrid, or leave it out",
            )
        return self
