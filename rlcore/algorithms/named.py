"""Advantages and policy losses by their names in a configuration, or a user's own as `module:function`.

advantage(batch, config) -> floats [samples], or [samples, positions]
loss(tokens, config)     -> floats [samples, positions], or a PolicyLoss, which says what was clipped too

An advantage sees the whole batch: `rewards` (float64), `groups`, `included`, `lengths` and `prompt_lengths` [samples],
`tokens`, `loss_mask`, `rollout_logprobs` and `policy_versions` [samples, positions], and more by the configuration. Of
a completion without a reward `included` is False. A loss is minimised, and sees the `Tokens` of one microbatch
(`rlcore.algorithms.losses`), which has some of the samples: each sample is to be treated by itself. What compares
samples is an advantage. What either gives outside the loss mask is not read.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlcore.algorithms import advantages
from rlcore.algorithms.arguments import described
from rlcore.algorithms.correction import accepted, icepop, mismatch, sequence_weights, token_weights, truncate
from rlcore.algorithms.losses import PolicyLoss, Tokens, cispo, dppo_tv, gspo, ipo, masked_is, ppo_clip
from rlcore.config import CorrectionSection, RunConfig
from rlcore.data.batch import Batch
from rlcore.data.rewards import load_function, place_of
from rlcore.errors import InvalidValueError, RlcoreError


def _compared(estimate: Callable[..., Tensor], batch: Batch, config: RunConfig, *mask: Tensor) -> Tensor:
    """Estimate advantages relative to a group; the only item of a reasoning has none to be compared with: 0."""
    lone = {} if config.sampling.two_stage is None else {"keep_lone": False}
    return estimate(batch["rewards"], batch["groups"], *mask, batch["included"], **lone)


def _remax(batch: Batch) -> Tensor:
    """Compare each completion with the greedy one of its prompt."""
    mask, included = batch["loss_mask"], batch["included"]
    at_end = advantages.at_last_token(batch["rewards"].float(), mask, included)
    return advantages.remax(at_end, batch["greedy_rewards"], mask, included).advantages


ADVANTAGES: Mapping[str, Callable[[Batch, RunConfig], Tensor]] = {
    "grpo": lambda batch, config: _compared(advantages.grpo, batch, config),
    "dr_grpo": lambda batch, config: _compared(advantages.dr_grpo, batch, config),
    "rloo": lambda batch, config: _compared(advantages.rloo, batch, config),
    "reinforce_pp_baseline": lambda batch, config: _compared(
        advantages.reinforce_pp_baseline, batch, config, batch["loss_mask"]
    ),
    "remax": lambda batch, config: _remax(batch),
}
"""By `algorithm.advantage`; `function_of` has a user's own beside them."""


_SETTINGS = ("clip_eps_low", "clip_eps_high", "dual_clip", "mask_low", "mask_high", "proximal_coef")


def _configured(loss: Callable[..., PolicyLoss]) -> Callable[[Tokens, RunConfig], PolicyLoss]:
    """Return a loss with its settings; one that is left out is as the loss has it."""

    def compute(tokens: Tokens, config: RunConfig) -> PolicyLoss:
        given = {name: getattr(config.algorithm, name, None) for name in _SETTINGS}
        return loss(tokens, **{name: value for name, value in given.items() if value is not None})

    return compute


LOSSES: Mapping[str, Callable[[Tokens, RunConfig], PolicyLoss | Tensor]] = {
    loss.__name__: _configured(loss) for loss in (ppo_clip, gspo, cispo, dppo_tv, ipo, masked_is)
}
"""By `algorithm.loss`, which is the name of the function; `function_of` has a user's own beside them."""


def function_of(name: str, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Return the function of a name, or that of `module:function`. Raises InvalidValueError, RewardError."""
    return known[name] if name in known else partial(_own, name, load_function(name, "advantages and losses"))


def _own(name: str, function: Callable[..., Any], given: Batch | Tokens, config: RunConfig) -> Any:
    """Call a user's advantage or loss with copies of its tensors, which it may write; raises InvalidValueError."""
    named = given._asdict() if isinstance(given, Tokens) else dict(given)
    copies = {key: tensor.clone() for key, tensor in named.items()}
    try:
        found = function(Tokens(**copies) if isinstance(given, Tokens) else Batch(copies), config)
    except RlcoreError:
        raise
    except Exception as error:  # whatever it raises
        said = f"{name} raised {type(error).__name__}: {error}{place_of(error)}"
        raise InvalidValueError(said, legal=", ".join(named) if isinstance(error, KeyError) else "") from error

    values, mask = found.losses if isinstance(found, PolicyLoss) else found, named["loss_mask"]
    shapes = [mask.shape] if isinstance(given, Tokens) else [mask.shape, mask.shape[:1]]
    if not isinstance(values, Tensor) or values.shape not in shapes or not values.is_floating_point():
        what = described(values) if isinstance(values, Tensor) else repr(values)[:60]
        legal = f"floats [samples, positions], here {list(mask.shape)}" + ", or [samples]" * (len(shapes) > 1)
        remedy = "one loss for each token: algorithm.aggregation adds them up" if isinstance(given, Tokens) else ""
        raise InvalidValueError(f"{name} returned {what}", legal=legal, remedy=remedy)
    if isinstance(given, Tokens) and given.logprobs.requires_grad and not values.requires_grad:
        raise InvalidValueError(f"{name} returned losses without a gradient", legal="losses made of tokens.logprobs")
    counted = mask if values.dim() > 1 else named["included"]
    if wrong := (counted & ~values.isfinite()).nonzero().tolist():
        number = float(values.detach()[tuple(wrong[0])])
        raise InvalidValueError(f"{name} returned {number} at {wrong[0]}", legal="a finite number where one is used")
    return found


def correction_weights(section: CorrectionSection, old: Tensor, sampled: Tensor, mask: Tensor) -> Tensor | None:
    """Compute weights of losses for the mismatch of trainer and sampler; None if none are asked for."""
    log_ratio = mismatch(old, sampled, mask)
    if section.weights == "none":
        weights = mask.float()
    else:
        weights = (token_weights if section.weights == "token" else sequence_weights)(log_ratio, mask)
        is_icepop = section.outside == "icepop"
        weights = icepop(weights, section.low, section.high) if is_icepop else truncate(weights, section.high)
    if section.max_mean_k3 is not None:
        kept = accepted(log_ratio, mask, max_mean_k3=section.max_mean_k3)
        return torch.where(kept, weights, 0.0)
    return None if section.weights == "none" else weights
