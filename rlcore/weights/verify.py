"""The checks of a sync that compare digests: before it, after it, and after it was done twice."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.weights.coverage import check_written
from rlcore.weights.layouts import layout_of
from rlcore.weights.receipts import Check, Receipt
from rlcore.weights.target import TargetState, WeightTarget

Digests = Mapping[str, str]


def check_fence(state: TargetState, policy_version: int, previous: Receipt | None) -> None:
    """Check that versions rise; only a first sync, or one after a failure, may repeat the sampler's version.

    Raises WeightSyncError.
    """
    lowest = state.policy_version + 1 if previous is not None else state.policy_version
    if policy_version < lowest:
        raise WeightSyncError(
            f"version {policy_version} for a sampler that has version {state.policy_version}",
            check=Check.FENCE,
            legal=f"{lowest} or more",
            remedy="count the policy's version up before each sync; a new run has a new sampler",
        )


def check_unmodified(state: TargetState, found: Digests, receipt: Receipt) -> None:
    """Check that a sampler is as the receipt left it, by its version and digests; raises WeightSyncError."""
    if (state.policy_version, state.weights_digest) != (receipt.policy_version, receipt.weights_digest):
        raise WeightSyncError(
            f"the sampler reports version {state.policy_version}, {state.weights_digest}",
            check=Check.HELD,
            legal=f"version {receipt.policy_version}, {receipt.weights_digest}, by its last receipt",
        )
    if changed := changed_names(state.parameters, found, receipt):
        raise WeightSyncError(
            f"of the sampler was changed since the sync of version {receipt.policy_version} "
            f"({len(changed)} of {len(state.parameters)} parameters were); "
            "its samples since then have unknown weights",
            check=Check.HELD,
            parameter=changed[0],
            remedy="find who else writes the sampler's weights, or loses them; then sync with previous=None",
        )


def changed_names(names: Iterable[str], digests: Digests, receipt: Receipt) -> list[str]:
    """Return the parameters whose digest is not that of the receipt."""
    return [name for name in names if digests.get(name) != receipt.parameters.get(name)]


def check_policy_changed(expected: Digests, previous: Receipt) -> None:
    """Check that a policy that has learned differs from the last receipt in some bit; raises WeightSyncError."""
    if not changed_names(expected, expected, previous):
        raise WeightSyncError(
            f"the policy has learned since version {previous.policy_version}, and no bit of it has changed",
            check=Check.LIVENESS,
            remedy="sync the model that the optimizer moves; where it is that one, steps are too small for its type",
        )


def check_arrived(
    source: Mapping[str, Tensor],
    expected: Digests,
    target: WeightTarget,
    names: Iterable[str],
    *,
    previous: Receipt | None,
    checks: frozenset[Check],
) -> None:
    """Check that each parameter has its expected digest; the first of three checks that fits names the difference.

    Raises WeightSyncError: coverage if it was not written, liveness if it is as it was at the last receipt, read-back
    if it is anything else.
    """
    if not checks & {Check.COVERAGE, Check.LIVENESS, Check.READ_BACK}:
        return
    names = tuple(names)
    found = target.digests(names)
    different = [name for name in names if found.get(name) != expected[name]]
    extent = f"{len(different)} of {len(names)} parameters differ from the policy's"
    for name in different:
        difference = target.compare({name: source[name]})[name]
        if Check.COVERAGE in checks:
            check_written(name, source[name], difference, extent)
        if Check.LIVENESS in checks and previous is not None and found.get(name) == previous.parameters.get(name):
            raise WeightSyncError(
                f"has changed in the policy since version {previous.policy_version}, and not in the sampler",
                check=Check.LIVENESS,
                parameter=name,
                remedy="let the transport send the policy it is given",
            )
        if Check.READ_BACK in checks:
            layout = layout_of(name, source, target)
            raise WeightSyncError(
                f"of the sampler: {difference.num_differing} of {source[name].numel()} elements differ ({extent})"
                + (f": {layout}" if layout else ""),
                check=Check.READ_BACK,
                parameter=name,
                remedy="write the policy's bits: no other order, type or scale than the sampler's own parameter has",
            )


def check_idempotent(
    source: Mapping[str, Tensor], expected: Digests, target: WeightTarget, names: Iterable[str]
) -> None:
    """Check that the same weights, loaded a second time, have the bits of the first; raises WeightSyncError."""
    names = tuple(names)
    found = target.digests(names)
    for name in names:
        if found.get(name) != expected[name]:
            difference = target.compare({name: source[name]})[name]
            raise WeightSyncError(
                f"of the sampler, written twice: {difference.num_differing} of {source[name].numel()} elements "
                "differ from the policy's",
                check=Check.IDEMPOTENCE,
                parameter=name,
                remedy="let a load begin from the layout that parameters have, not from what the last load made of it",
            )
