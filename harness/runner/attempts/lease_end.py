"""The fate of each GPU of a lease that ends, as events."""

from collections.abc import Callable, Mapping

from harness.runner.events import Event, GpuQuarantined, LeaseRefused, LeaseReturned

Post = Callable[[Event], None]


def end_lease(post: Post, t: float, path: str, gpu_ids: tuple[str, ...], unfit: Mapping[str, str]) -> None:
    """Post a quarantine for each GPU in `unfit`, which has the reasons, and one return of all others."""
    for gpu_id, reason in unfit.items():
        post(GpuQuarantined(t, path, gpu_id, reason))
    if free := tuple(gpu_id for gpu_id in gpu_ids if gpu_id not in unfit):
        post(LeaseReturned(t, path, free))


def refuse_lease(
    post: Post, t: float, path: str, gpu_ids: tuple[str, ...], unfit: dict[str, str], *, lost: str = ""
) -> None:
    """End a lease of which some GPUs are `unfit`, or whose attempt was `lost`, and have its unit queued again."""
    end_lease(post, t, path, gpu_ids, unfit)
    post(LeaseRefused(t, path, unfit, lost))
