"""Witnesses: values of a step computed a second time, by other code, and compared.

    tokens      logits of the trainer + noise of key and position ─▶ the token that was drawn     a sample of them
    reference   in the first step it is the policy ─▶ the sampler's log-probabilities, to the bit
    gradients   torch.autograd.grad of every microbatch, added one by one ─▶ the sum of the tree  a trainer's first

A fault that repeats itself is seen by no comparison of two runs; it is seen here.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlcore.checks.mismatch import mismatch_of
from rlcore.config import RunConfig
from rlcore.data.trajectory import Trajectory
from rlcore.errors import LevelError, StepError
from rlcore.keys import key
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.observability.events import (
    BackwardBegins,
    BatchExtended,
    Event,
    GradientsSummed,
    RolloutBatched,
    RunBegins,
    SamplingBegins,
    StepBegins,
    TrajectoriesSampled,
)
from rlcore.observability.observers import Observer
from rlcore.samplers.drawing import Filters, GumbelNoise, signed, states
from rlcore.types import SamplingParams
from rlcore.weights.source import LiveWeights, WeightSource

NUM_TOKENS = 16
"""Tokens of a completion that are drawn again: its first, its last, and others between them."""
NUM_AT_FIRST = 4
"""Completions that are drawn again in the first step of a process."""
DRAW_EVERY = 4
"""Steps from one in which a completion is drawn again to the next, after the first two."""
OTHER_WEIGHTS = 1e-2
"""Distance in nats from which a token's log-probability is that of another policy."""
TOLERANCE = 1e-3
"""Distance of two sums of fp32 gradients, relative to the norm of one of them: another order of additions."""


class DrawChecks(Observer):
    """Each token is the largest of the trainer's logits over the temperature, plus the noise of key and position."""

    def __init__(self) -> None:
        self._config: RunConfig | None = None
        self._policy: WeightSource | None = None
        self._num_steps = 0

    def observe(self, event: Event) -> None:
        """Draw some tokens again before anything is learned from them."""
        match event:
            case RunBegins(config):
                self._config = config
            case SamplingBegins(policy):
                self._policy = policy
                self._num_steps += 1
            case TrajectoriesSampled(_, trajectories):
                self._check(trajectories)

    def _check(self, trajectories: Sequence[Trajectory]) -> None:
        """Weights in other processes are fetched for it, once in a run."""
        is_first = self._num_steps == 1
        is_due = self._num_steps == 2 or self._num_steps % DRAW_EVERY == 0
        is_here = isinstance(self._policy, LiveWeights)
        if self._config is None or self._policy is None or not (is_first or (is_due and is_here)):
            return
        drawn = [each for each in trajectories if not each.request.beams and len(each.turns) == 2]
        decoder = self._policy.decoder() if drawn else None
        for number in range(min(len(drawn), NUM_AT_FIRST if is_first else 1)):
            trajectory = drawn[key("drawn again", self._num_steps, number) % len(drawn)]
            assert decoder is not None
            check_drawn(decoder, trajectory, expected_params(self._config, trajectory))


def expected_params(config: RunConfig, trajectory: Trajectory) -> SamplingParams:
    """Return temperature and filters as they are configured, whatever the request says; greedy ones stay so."""
    section, given = config.sampling, trajectory.request.params
    temperature = section.temperature if given.temperature else 0.0
    return SamplingParams(
        given.max_tokens, temperature=temperature, top_k=section.top_k, top_p=section.top_p, min_p=section.min_p
    )


@torch.no_grad()
def check_drawn(policy: Decoder, trajectory: Trajectory, params: SamplingParams) -> None:
    """Check that some tokens of a completion are what its key draws from the policy; raises LevelError naming one."""
    begin, count = trajectory.num_prompt_tokens, len(trajectory.tokens) - trajectory.num_prompt_tokens
    chosen = sorted({round(place * (count - 1) / (NUM_TOKENS - 1)) for place in range(NUM_TOKENS)})
    device = policy.embedding.device
    tokens, offsets = torch.tensor(trajectory.tokens, device=device), torch.tensor(chosen, device=device)
    hidden = policy.hidden(tokens[None, :-1])[0, begin - 1 + offsets]
    logits = policy.logits(hidden)
    scores = logits / params.temperature if params.temperature not in (0.0, 1.0) else logits
    if (filters := Filters.of([params], logits.shape[1], device)) is not None:
        rows = torch.cat([filters.allowed(row[None]) for row in scores])
        scores = scores.double().masked_fill(~rows, -torch.inf)
    if params.temperature:
        noise = GumbelNoise.of(logits.shape[1], device)
        seeds = torch.full_like(offsets, signed(trajectory.request.key))
        scores = noise(states(seeds, offsets)) + scores
    expected, found = scores.argmax(-1).tolist(), tokens[begin + offsets].tolist()
    said = torch.tensor(trajectory.completion_logprobs)[chosen]
    computed = token_logprobs(logits / (params.temperature or 1.0), tokens[begin + offsets]).cpu()
    if not torch.allclose(said, computed, atol=OTHER_WEIGHTS, rtol=0.0):
        return  # of other weights: the comparison of log-probabilities names the parameter
    for offset, token, other in zip(chosen, found, expected, strict=True):
        if token != other:
            raise LevelError(
                f"token {offset} of {trajectory.name} is {token}: its key and position draw {other} from the"
                f" trainer's logits at temperature {params.temperature:g}",
                legal="the largest of logit / sampling.temperature + noise, among tokens that the filters leave",
                remedy="check the sampler's temperature, filters and rows",
                phases=("rollout",),
            )


class ReferenceChecks(Observer):
    """In the first step of a run the reference is the policy: it gives each token what the sampler says of it."""

    def __init__(self) -> None:
        self._step = -1
        self._batched: RolloutBatched | None = None

    def observe(self, event: Event) -> None:
        """Compare once, in step 0."""
        match event:
            case StepBegins(step):
                self._step = step
            case RolloutBatched():
                self._batched = event
            case BatchExtended(batch, _, names) if self._step == 0 and "ref_logprobs" in names:
                assert self._batched is not None
                found = mismatch_of(batch["ref_logprobs"], batch["rollout_logprobs"], batch["loss_mask"])
                if found is not None:
                    raise LevelError(
                        f"the reference's log-probability is not the sampler's for {found.num_different} of"
                        f" {found.num_tokens} tokens, though the reference is the policy in step 0. The largest:"
                        f" position {found.column} of {self._batched.trajectories[found.row].name}:"
                        f" {found.trainer!r} of the reference, {found.sampler!r} in the sampler",
                        legal="equal bits at level invariant",
                        remedy="check when the reference was copied, its temperature, and the order of its passes",
                        phases=("reference", "rollout"),
                    )


class GradientChecks(Observer):
    """The first gradient of each trainer is the sum of those that torch.autograd.grad gives for its microbatches."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Tensor]] = {}
        self._seen: set[str] = set()

    def observe(self, event: Event) -> None:
        """Add up the gradients of the first update, before the trainer takes them, and compare the sums."""
        match event:
            case BackwardBegins(trainer, parameters, loss) if trainer not in self._seen:
                self._add(trainer, parameters, loss)
            case GradientsSummed(trainer, gradients) if trainer not in self._seen:
                self._seen.add(trainer)
                check_gradients(gradients, self._sums.pop(trainer))

    def _add(self, trainer: str, parameters: Sequence[nn.Parameter], loss: Tensor) -> None:
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
        if trainer not in self._sums:
            self._sums[trainer] = [gradient.float().clone() for gradient in found]
        else:
            torch._foreach_add_(self._sums[trainer], [gradient.float() for gradient in found])


def check_gradients(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Check that gradients by parameter are those of a second computation, but for rounding; raises StepError."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        distance, size = float((one - other).norm()), float(other.norm())
        if not math.isfinite(size) and not math.isfinite(float(one.norm())):
            continue  # in both: a loss that is not finite is named where the norm is checked
        if not distance <= TOLERANCE * size + torch.finfo(torch.float32).tiny:
            raise StepError(
                f"the gradient of parameter {number}, {list(one.shape)}, is {distance:.3g} away from the sum that"
                " torch.autograd.grad gives for its microbatches",
                legal=f"at most {TOLERANCE:g} of its norm, {size:.3g}",
                remedy="check what is added to the sum of each microbatch, and how often",
                phases=("backward",),
            )
