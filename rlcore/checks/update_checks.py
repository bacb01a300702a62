"""Invariants of an update, whatever is trained: models, minibatches, passes, and the optimizer's step.

    models ─▶ minibatches ─▶ passes ─▶ gradients ─▶ step

A check that fails is a bug of rlcore, or of what was put into it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from harness.bits.tensor_digests import weights_digest
from rlcore.config import OptimizerSection
from rlcore.data.batch import Batch
from rlcore.errors import StepError
from rlcore.trainers.gradients import local_part

NORM_ROUNDING = 1e-2
"""Of a norm; a clip rounds bf16 gradients."""
SMALLEST_NORM = 1e-15
"""Below it, squares of fp32 gradients vanish."""


def check_own_memory(models: Mapping[str, nn.Module]) -> None:
    """No two models have a parameter in the same memory; raises StepError naming both."""
    owners: dict[tuple[torch.device, int], str] = {}
    for name, model in models.items():
        here = [local_part(parameter) for parameter in model.parameters()]
        places = {(p.device, p.untyped_storage().data_ptr()) for p in here if p.numel()}
        if shared := next((owners[place] for place in places if place in owners), ""):
            raise StepError(
                f"the {name} has weights in the memory of the {shared}: what moves one moves the other",
                remedy="give it a deep copy",
                phases=("reference" if "reference" in (name, shared) else "optimizer",),
            )
        owners |= dict.fromkeys(places, name)


def check_epoch(samples: Iterable[int], included: Sequence[bool]) -> None:
    """Check that an epoch has every sample once that is `included`, and no other; raises StepError."""
    counts = Counter(samples)
    if wrong := [sample for sample, is_included in enumerate(included) if counts[sample] != is_included]:
        raise StepError(
            f"sample {wrong[0]} is in an epoch {counts[wrong[0]]} times, one of {len(wrong)} that are not in it once",
            legal=f"each of the {sum(included)} samples with a reward once, and no other",
            phases=("forward", "loss"),
        )


Kept = Mapping[str, tuple[Tensor, int]]
"""The entries of a batch, and how often torch has seen each written."""
_MADE_IN = {
    **dict.fromkeys(("rewards", "included", "greedy_rewards"), "reward"),
    **dict.fromkeys(("old_logprobs", "ref_logprobs", "values"), "reference"),
    **dict.fromkeys(("advantages", "returns"), "advantage"),
}


def kept(batch: Batch) -> Kept:
    """What `check_kept` compares with."""
    return {name: (entry, entry._version) for name, entry in batch.items()}


def check_kept(batch: Batch, before: Kept) -> None:
    """What a step learns from stays as it was while it is learned from; raises StepError naming the entry."""
    for name, (entry, num_writes) in before.items():
        if batch.get(name) is not entry or entry._version != num_writes:
            raise StepError(
                f"{name} of the batch were written while it was learned from",
                remedy="estimate once a step, before the first update: a ratio to what moves along is always 1",
                phases=(_MADE_IN.get(name, "rollout"), "loss"),
            )


def check_passes(masks: Sequence[Tensor], num_tokens: float, num_samples: float) -> None:
    """The passes of an update read every sample and every token that losses are divided by, once.

    `masks` are those of the passes. Raises StepError.
    """
    found = sum(map(len, masks)), sum(int(mask.sum()) for mask in masks)
    if found != (num_samples, num_tokens):
        raise StepError(
            f"the passes of an update read {found[0]} samples with {found[1]} tokens to learn",
            legal=f"{num_samples:g} and {num_tokens:g}, those of its minibatch, which its losses are divided by",
            phases=("forward", "loss"),
        )


def check_no_gradient(parameters: Iterable[nn.Parameter]) -> None:
    """Nothing is left of the pass before; raises StepError."""
    if any(parameter.grad is not None for parameter in parameters):
        raise StepError("a pass begins with the gradients of the previous one", phases=("backward",))


def check_configured(optimizer: torch.optim.Optimizer, section: OptimizerSection) -> None:
    """What moves the weights is what the configuration says, for every group of them; raises StepError."""
    wanted = {
        "betas": (section.beta1, section.beta2),
        "eps": section.eps,
        "weight_decay": section.weight_decay,
        "foreach": True,
    }
    wrong = [
        f"{name} {group.get(name)!r} (configured: {value!r})"
        for group in optimizer.param_groups
        for name, value in wanted.items()
        if group.get(name) != value
    ]
    if not isinstance(optimizer, torch.optim.AdamW):
        wrong.append(f"a {type(optimizer).__name__} (AdamW, which decays weights apart from the gradient)")
    if wrong:
        raise StepError(f"the optimizer has {', '.join(wrong)}", phases=("optimizer",))


def check_norm(found: float | None, expected: float | None, what: str) -> None:
    """Check the norm of gradients against another one, if both are known; raises StepError."""
    if found is None or expected is None or math.isclose(found, expected, rel_tol=NORM_ROUNDING):
        return
    raise StepError(
        f"the norm of {what} is {found:.6g}",
        legal=f"{expected:.6g}",
        remedy="take the norm of what is stepped, all of it, before the clip",
        phases=("optimizer",),
    )


def norm_of(gradients: Sequence[Tensor]) -> float | None:
    """Return the norm of whole gradients by torch's own sums; None if fp32 has no number for it, or for parts."""
    if not gradients or any(local_part(each) is not each for each in gradients):
        return None
    norm = math.hypot(*map(float, torch._foreach_norm(list(gradients), 2, dtype=torch.float32)))
    return norm if SMALLEST_NORM < norm < math.inf else None


def check_group_rates(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Check that every group of weights is moved at the rate of the update; raises StepError."""
    if wrong := [group["lr"] for group in optimizer.param_groups if group["lr"] != learning_rate]:
        raise StepError(
            f"a group of weights has learning rate {wrong[0]!r}", legal=repr(learning_rate), phases=("optimizer",)
        )


def check_scheduled(trainer: str, found: float, expected: float) -> None:
    """Check that a learning rate is that of the model's own schedule; raises StepError."""
    if found != expected:
        raise StepError(
            f"the {trainer} learns at rate {found!r}",
            legal=f"{expected!r}, by its own peak rate and the schedule of the step",
            phases=("optimizer",),
        )


def check_clipped(before: Tensor, after: Tensor, factor: float) -> None:
    """A gradient whose norm is too large is multiplied by what makes it as large as allowed; raises StepError."""
    limits = torch.finfo(after.dtype)
    if not torch.allclose(after.double(), before.double() * factor, rtol=2 * limits.eps, atol=limits.tiny):
        raise StepError(
            f"the clip should have multiplied gradients by {factor:.3g}, and did not", phases=("optimizer",)
        )


def check_rate(rate: float, rate_before: float | None) -> None:
    """All updates of a model in a step have the rate of the step; raises StepError."""
    if rate_before not in (None, rate):
        raise StepError(
            f"learning rate {rate:g} after {rate_before:g}, in one step",
            remedy="let the rate follow from the step's number, not from how many updates there were",
            phases=("optimizer",),
        )


def num_steps_of(optimizer: torch.optim.Optimizer) -> dict[Tensor, float]:
    """How many steps the optimizer counts for each parameter that it has moved."""
    return {parameter: float(state["step"]) for parameter, state in optimizer.state.items() if state}


def check_stepped(model: nn.Module, optimizer: torch.optim.Optimizer, num_steps_before: Mapping[Tensor, float]) -> None:
    """An update has moved every parameter of the model once; raises StepError naming the first that it has not."""
    found = num_steps_of(optimizer)
    for name, parameter in model.named_parameters():
        num_steps = found.get(parameter, 0.0) - num_steps_before.get(parameter, 0.0)
        if num_steps != 1:
            raise StepError(
                f"{name} has had {num_steps:g} steps of the optimizer in one update",
                legal="1",
                remedy="give the optimizer all parameters of the model, and call its step() once",
                phases=("optimizer",),
            )


def check_frozen(reference: nn.Module, digest_before: str) -> str:
    """Check that the reference policy has the bits that it was first read with; return their digest.

    `digest_before` is empty at the first reading. torch's count of writes moves neither with `parameter.data = x`, nor
    with a write through `parameter.data`. Raises StepError.
    """
    digest = weights_digest({name: local_part(parameter) for name, parameter in reference.named_parameters()})
    if digest_before not in ("", digest):
        raise StepError(
            "the weights of the reference policy were written since the run began",
            remedy="give it a deep copy of the policy, which no optimizer moves",
            phases=("reference",),
        )
    return digest
