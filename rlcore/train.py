"""Training on a page: a step of GRPO, a step of PPO, and the loop around steps.

    sample ─▶ score ─▶ advantages ─▶ minibatches ─▶ loss ─▶ update ─▶ sync

`record` takes each value that a step computes, and `checks` compares what must be equal, before the policy moves and at
the end of the step: neither changes a bit. Nothing is drawn by chance: noise and orders follow from `rlcore.seeds`, the
learning rate from the number of the step. Settings are the keys of `rlcore.config`, which has their defaults.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlcore.algorithms.advantages import at_last_token, gae, per_token, whiten
from rlcore.algorithms.aggregation import Denominators, sample_shares
from rlcore.algorithms.arguments import included_tokens
from rlcore.algorithms.correction import reweighted
from rlcore.algorithms.kl import adaptive_kl_coef, approx_kl, in_rewards
from rlcore.algorithms.losses import PolicyLoss, Tokens, value_loss
from rlcore.algorithms.named import ADVANTAGES, LOSSES, correction_weights, function_of
from rlcore.algorithms.schedules import constant_lr, cosine_lr, linear_lr
from rlcore.checks import Checks, mismatch_of
from rlcore.config import GrpoSection, OptimizerSection, PpoSection, RunConfig
from rlcore.data.batch import Batch, collate, dense_batch
from rlcore.data.environments import Environments, demonstrate, first_error, sample_episodes
from rlcore.data.microbatches import Microbatch, fixed_microbatches, microbatches_by_budget
from rlcore.data.scoring import Scores, score, score_branches
from rlcore.data.tasks import DEMONSTRATION, Task
from rlcore.data.trajectory import Trajectory, best_completions, by_request
from rlcore.errors import InvalidValueError, LevelError, PlacementError, RewardError
from rlcore.log import Clock, Record, RunLog, mean
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import token_logprobs_and_entropy
from rlcore.numerics.probe import num_threads
from rlcore.resume import DIRECTORY, save_checkpoint
from rlcore.samplers.base import NextTokenSampler
from rlcore.samplers.drawing import at_temperature, by_temperature
from rlcore.samplers.two_stage import sample_two_stage
from rlcore.seeds import completion_key, epoch_items, key, permutation
from rlcore.trainers.gradients import Loss, MicrobatchLoss, Reading
from rlcore.trainers.trainer import Trainer
from rlcore.types import BeamParams, Prompt, SampleRequest, SamplingParams, Tokenizer
from rlcore.weights.proven_sync import sync
from rlcore.weights.receipts import Receipt
from rlcore.weights.source import digest_of


@dataclass(slots=True)
class TrainState:
    """The parts of one run."""

    config: RunConfig
    level: str
    task: Task
    tokenizer: Tokenizer
    policy: Trainer
    sampler: NextTokenSampler
    record: Record
    clock: Clock
    critic: Trainer | None = None
    """PPO's, which reads as the policy did after the warm start, and expects 0 of everything."""
    reference: Trainer | None = None
    """The policy as it was after the warm start, if `algorithm.kl_coef` asks for it; it never moves."""
    kl_coef: float = 0.0
    """`algorithm.kl_coef`; it moves if `algorithm.kl_target` is set."""
    receipt: Receipt | None = None
    """Proof that the sampler has the policy's weights: their version and digest."""
    warm_start: tuple[str, list[tuple[float, str, float]]] | None = None
    """Digest of the weights before it; of each step, loss per token, digest and norm of the gradient."""
    first_evaluation: "Evaluation | None" = None
    """Evaluation before step 0."""
    content: Mapping[str, str] = field(default_factory=dict)
    """Digests of what the configuration names: `rlcore.data.content.content_of`."""
    checks: Checks = field(init=False)
    """Set when the rest is built: `rlcore.entrypoint.prepare`."""

    @property
    def decoder(self) -> Decoder:
        """The policy's model: the live one of a trainer of this process, else a copy of its weights."""
        return self.policy.weights().decoder()

    @property
    def models(self) -> tuple[Trainer, ...]:
        """All models of the run, the policy first."""
        return tuple(model for model in (self.policy, self.critic, self.reference) if model is not None)

    def prompts_of(self, step: int) -> list[Prompt]:
        """Return the prompts of a step: a keyed order, every prompt once per epoch."""
        count, prompts = self.config.training.prompts_per_step, self.task.train
        return [prompts[i] for i in epoch_items(step * count, count, len(prompts), self.config.seed, "prompts")]


class Minibatch(NamedTuple):
    """The samples of one optimizer step: the passes that read them, and what their losses are divided by."""

    microbatches: list[Microbatch]
    denominators: Denominators


class Update(NamedTuple):
    """An optimizer step that was made."""

    trainer: str
    norm: float
    """Norm of the gradient, before clipping."""
    learning_rate: float
    losses: Sequence[MicrobatchLoss]
    denominators: Denominators


class Matched(NamedTuple):
    """Log-probabilities of the policy that sampled, by the trainer and by the sampler; [samples, positions] each."""

    logprobs: Tensor
    rollout_logprobs: Tensor
    loss_mask: Tensor
    rows: Sequence[int]
    """Row of the batch of each row of these."""
    first: int
    """Position of the first column."""


class Step:
    """What a step was made of, for its checks and its metrics."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.requests: list[SampleRequest] = []
        self.receipt: Receipt | None = None
        self.rollouts: list[Trajectory] = []
        """Completions in canonical order, by prompt as drawn, then by number; `receipt` is of their weights."""
        self.scores: Scores
        self.batch: Batch
        self.num_writes: dict[str, int] = {}
        """How often each entry of the batch had been written when learning began: never again after it."""
        self.samples: list[int] = []
        """Rows of the batch in the order of the passes, all epochs."""
        self.matched: list[Matched] = []
        self.updates: list[Update] = []
        self.metrics: dict[str, float] = {}


# ---------------------------------------------------------------------------------------------------------------- GRPO


def grpo(state: TrainState, step: Step) -> None:
    """Make a step of GRPO: advantages relative to other completions of the prompt, a clipped ratio, no critic.

    DeepSeekMath (arXiv:2402.03300), algorithm 1. By default there is no KL (`algorithm.kl_coef`), and losses of tokens
    are divided by the tokens of the whole minibatch (`algorithm.aggregation`), where the paper takes a mean of means.
    """
    config, record = state.config, state.record
    assert isinstance(config.algorithm, GrpoSection)
    batch = rollout(state, step)
    if config.algorithm.advantage == "remax":
        batch = batch.extended(greedy_rewards=greedy_rewards(state, step))
        record("reward", "greedy_rewards", batch["greedy_rewards"])

    found = function_of(config.algorithm.advantage, ADVANTAGES)(batch, config)  # of rewards in fp64
    advantages = found if found.dim() == 2 else per_token(found, batch["loss_mask"])  # one number on each of its tokens
    batch = batch.extended(advantages=advantages.float())
    record("advantage", "advantages", batch["advantages"])

    for minibatch in minibatches(state, step, batch):
        update(state, step, state.policy, minibatch, partial(policy_loss, config, minibatch.denominators))
    sync_weights(state, step)


def rollout(state: TrainState, step: Step) -> Batch:
    """Sample completions, score them, and build their batch: right-padded rows in canonical order.

    If a loss needs them, it has the log-probabilities of the policy before the step and of the reference too.
    """
    config, record = state.config, state.record
    step.requests = requests(state, step.number)
    step.receipt, step.rollouts = state.receipt, sample(state, step.requests)
    control = (config.seed, step.number) if config.task.shuffles_rewards else None
    step.scores = score_rollouts(state, step.rollouts, step.number, control=control)
    batch = dense_batch(step.rollouts, step.scores, pad_id=state.tokenizer.pad_id).to(config.model.device)
    record("rollout", "prompt_ids", [each.request.prompt.id for each in step.rollouts])
    digests = {digest for each in step.rollouts for digest in each.weights_digests.values()}
    record("rollout", "weights_digest", sorted(digests))
    named = {"loss_mask": batch["loss_mask"], "tokens": batch["tokens"], "logprobs": batch["rollout_logprobs"]}
    named |= {name: batch[name] for name in ("prompt_lengths", "lengths", "groups")}
    record.all("rollout", named.items())
    record.all("reward", [(name, batch[name]) for name in ("included", "rewards")])

    logprobs = partial(read_logprobs, config.sampling.temperature)
    if config.training.num_epochs * config.training.num_minibatches > 1:
        # Later updates compare with the policy before the first. A single update needs no such pass: see policy_loss.
        batch = batch.extended(old_logprobs=read(state, state.policy, batch, logprobs))
        record("reference", "old_logprobs", batch["old_logprobs"])
        old, sampled, mask = (batch[name] for name in ("old_logprobs", "rollout_logprobs", "loss_mask"))
        step.matched = [Matched(old, sampled, mask, range(len(mask)), 0)]
    if state.reference is not None:
        batch = batch.extended(ref_logprobs=read(state, state.reference, batch, logprobs))
        rest(state, state.reference)
        record("reference", "ref_logprobs", batch["ref_logprobs"])
    return batch


def requests(state: TrainState, step: int) -> list[SampleRequest]:
    """Build `training.group_size` requests per prompt of a step; a prompt that comes twice in it counts on."""
    config, seen = state.config, dict[str, int]()
    params, beams = sampling_params(config, state.tokenizer), beam_params(config, state.tokenizer)
    wanted = []
    for prompt in state.prompts_of(step):
        first = seen.get(prompt.id, 0)
        seen[prompt.id] = first + config.training.group_size
        for index in range(first, seen[prompt.id]):
            noise = completion_key(seed=config.seed, step=step, prompt_id=prompt.id, sample_index=index)
            wanted.append(SampleRequest(prompt, index, noise, params, beams))
    return wanted


def sample(state: TrainState, wanted: Sequence[SampleRequest]) -> list[Trajectory]:
    """Sample the completions of requests, in their order, while the models rest."""
    with state.clock("rollout"):
        rest(state, state.policy, state.critic, state.reference)
        return collect(state, wanted)


def collect(state: TrainState, wanted: Sequence[SampleRequest]) -> list[Trajectory]:
    """Sample completions, in the order of requests whatever that of their arrival (`runtime.arrival_seed`).

    A request with beams has several trajectories: a reasoning, then its items.
    """
    runtime, order = state.config.runtime, list(range(len(wanted)))
    if runtime.arrival_seed:
        order = permutation(len(wanted), "arrival", runtime.arrival_seed)
    arriving = [wanted[index] for index in order]
    with num_threads(runtime.sampling_threads, "rollout"):
        if any(request.beams for request in wanted):
            arrived = sample_two_stage(state.sampler, state.tokenizer, arriving)
        elif state.task.environments is not None:
            arrived = [[each] for each in sample_episodes(state.sampler.sample, state.task.environments, arriving)]
        else:
            arrived = [[each] for each in state.sampler.sample(arriving)]
    found = dict(zip(order, arrived, strict=True))
    return [trajectory for index in range(len(wanted)) for trajectory in found[index]]


def score_rollouts(
    state: TrainState, rollouts: Sequence[Trajectory], step: int, *, control: tuple[str | int, ...] | None = None
) -> Scores:
    """Score completions by the reward functions; with `control`, parts of a key, each reward goes to another sample."""
    with state.clock("reward"):
        return score_branches(state.task.rewards, rollouts, step=step, control=control)


def minibatches(state: TrainState, step: Step, batch: Batch) -> Iterator[Minibatch]:
    """Yield the minibatches of a step: `training.num_minibatches` of keyed order in each of `training.num_epochs`.

    Every sample that has a reward is in one minibatch of an epoch, the others are in none. One minibatch per epoch
    keeps canonical order.
    """
    training, learned = state.config.training, batch["included"].nonzero().flatten().tolist()
    step.batch, step.num_writes = batch, {name: entry._version for name, entry in batch.items()}
    for epoch in range(training.num_epochs):
        order = learned
        if training.num_minibatches > 1:
            parts = (state.config.seed, "minibatches", step.number, epoch)
            order = [learned[at] for at in permutation(len(learned), *parts)]
        size = -(-len(learned) // training.num_minibatches)  # two-stage rollouts have any number of samples
        for begin in range(0, len(learned), size):
            minibatch = divide(state, batch, order[begin : begin + size])
            step.samples += [sample for each in minibatch.microbatches for sample in each.samples]
            yield minibatch


def divide(state: TrainState, batch: Batch, samples: list[int]) -> Minibatch:
    """Divide samples into microbatches: passes whose gradients are added.

    At level invariant each has `RunConfig.microbatch_size` neighbours, which is a part of what the run is; at the other
    levels as many samples as `runtime.token_budget` has room for.
    """
    budget, size = state.config.runtime.token_budget, state.config.microbatch_size
    denominators = Denominators(
        num_tokens=int(batch["loss_mask"][samples].sum()),
        num_samples=len(samples),
        horizon=state.config.max_completion_tokens,
    )
    if state.level == "invariant":
        return Minibatch(fixed_microbatches(batch, samples, size, token_budget=budget), denominators)
    return Minibatch(microbatches_by_budget(batch, samples, token_budget=budget), denominators)


def policy_loss(
    config: RunConfig, denominators: Denominators, policy: nn.Module, microbatch: Microbatch
) -> MicrobatchLoss:
    """Compute a microbatch's share of the minibatch's loss: surrogate, correction, penalties, aggregation."""
    section, mask, sampled = config.algorithm, microbatch["loss_mask"], microbatch["rollout_logprobs"]
    logprobs, entropy = read_tokens(config.sampling.temperature, policy, microbatch)
    # Without old_logprobs this is the step's only update: the ratio is 1, and its gradient that of the log-probability.
    old = microbatch["old_logprobs"] if "old_logprobs" in microbatch else logprobs.detach()
    loss = function_of(section.loss if isinstance(section, GrpoSection) else "ppo_clip", LOSSES)
    found = loss(Tokens(logprobs, old, sampled, microbatch["advantages"], mask), config)
    losses, clipped = found[:2] if isinstance(found, PolicyLoss) else (found, torch.zeros_like(mask))
    # approx_kl is to the policy before the step, ref_kl to the reference.
    observed = {"logprobs": logprobs, "entropy": entropy, "approx_kl": old - logprobs, "clipped": clipped.float()}
    if (weights := correction_weights(config.correction, old, sampled, mask)) is not None:
        losses = reweighted(losses, weights, mask)  # and neither KL nor entropy, which are the policy's own
    if isinstance(section, GrpoSection) and "ref_logprobs" in microbatch:  # PPO has the KL in its rewards
        given = (logprobs, microbatch["ref_logprobs"], mask, section.kl_estimator)
        observed["ref_kl"] = approx_kl(*given)
        is_weighed = "old_logprobs" in microbatch if section.weighs_kl is None else section.weighs_kl
        losses = losses + section.kl_coef * approx_kl(*given, old_logprobs=old if is_weighed else None)
    if section.entropy_coef:
        losses = losses - section.entropy_coef * entropy
    if weights is not None:
        observed["weights"] = weights
    shares = sample_shares(losses, mask, config.aggregation, denominators)
    return MicrobatchLoss(shares.sum(), {name: value.detach() for name, value in observed.items()}, mask)


def read_tokens(
    temperature: float | Sequence[float], policy: nn.Module, microbatch: Microbatch
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of the tokens from `first` on, and the entropy in nats at this temperature or each's.

    Both [samples, length - first], over the whole vocabulary, whatever the filters leave of it.
    A value stands at the position of the token it is about.
    """
    assert isinstance(policy, Decoder)
    hidden = policy.hidden(microbatch.tokens[:, :-1])[:, microbatch.first - 1 :]
    logits = policy.logits(hidden)
    given = temperature if isinstance(temperature, Sequence) else [temperature] * len(logits)
    logits = at_temperature(logits, by_temperature(given, logits.device))
    return token_logprobs_and_entropy(logits, microbatch.tokens[:, microbatch.first :])


def read_logprobs(temperature: float, policy: nn.Module, microbatch: Microbatch) -> Tensor:
    """Return the log-probabilities alone."""
    return read_tokens(temperature, policy, microbatch)[0]


def read(state: TrainState, model: Trainer, batch: Batch, reading: Reading) -> Tensor:
    """Read [samples, positions] of a whole batch, without a gradient, 0 where nothing is learned.

    Passes are made up to suit `runtime.token_budget`: at level invariant a row's bits do not depend on the others.
    """
    with state.clock("reference"):
        mask, budget = batch["loss_mask"], state.config.runtime.token_budget
        found = torch.zeros(mask.shape, device=mask.device)
        microbatches = microbatches_by_budget(batch, range(len(mask)), token_budget=budget)
        for microbatch, part in zip(microbatches, model.read(microbatches, reading), strict=True):
            end = min(microbatch.tokens.shape[1], mask.shape[1])
            found[list(microbatch.samples), microbatch.first : end] = part.float()[:, : end - microbatch.first]
        return torch.where(mask, found, 0.0)


def update(state: TrainState, step: Step, trainer: Trainer, minibatch: Minibatch, loss: Loss) -> None:
    """Compute the gradient of a minibatch, clip its norm to `optimizer.max_gradient_norm`, and move the weights once.

    The trainer adds the gradients of microbatches in one canonical tree for each parameter, in fp32, records them
    before the clip, and the weights and moments of AdamW after its step. Raises NonFiniteError.
    """
    record, config = state.record, state.config
    with state.clock("update"):
        losses = trainer.forward_backward(minibatch.microbatches, loss)
    for each in losses:
        observed = {name: torch.where(each.loss_mask, value, 0.0) for name, value in each.observed.items()}
        record.all("forward", [(f"{trainer.name}.{name}", value) for name, value in observed.items()])
        record("loss", trainer.name, each.loss)
    if trainer is state.policy and all(each.trainer != trainer.name for each in step.updates):  # it still is on policy
        step.matched = step.matched or [
            Matched(part.observed["logprobs"], each["rollout_logprobs"], each["loss_mask"], each.samples, each.first)
            for each, part in zip(minibatch.microbatches, losses, strict=True)
        ]
        state.checks.before(step)
    rate = learning_rate(config.optimizer, trainer.peak_rate, step.number, config.training.num_steps)
    with state.clock("optimizer"):
        norm = trainer.optimizer_step(learning_rate=rate, max_norm=config.optimizer.max_gradient_norm)
    record("backward", f"{trainer.name}.gradient_norm", norm)
    record("optimizer", f"{trainer.name}.learning_rate", rate)
    step.updates.append(Update(trainer.name, norm, rate, losses, minibatch.denominators))


def sync_weights(state: TrainState, step: Step) -> None:
    """Write the policy's weights to the sampler, and keep the receipt that proves it."""
    has_learned = any(each.trainer == "policy" and each.norm > 0.0 for each in step.updates)
    with state.clock("sync"):
        source, target = state.policy.weights(), state.sampler.weight_target
        state.receipt = sync(source, target, step.number + 1, state.receipt, has_learned=has_learned)
    state.record("sync", "weights_digest", state.receipt.weights_digest)


# ----------------------------------------------------------------------------------------------------------------- PPO


def ppo(state: TrainState, step: Step) -> None:
    """Make a step of PPO: a critic, generalised advantage estimation, a clipped ratio. arXiv:1707.06347, algorithm 1.

    As language models are trained with it: one reward a completion, on its last token; the distance to the reference
    policy is taken from the rewards of tokens (InstructGPT, arXiv:2203.02155); policy and critic are two models.
    """
    config, record = state.config, state.record
    section = config.algorithm
    assert isinstance(section, PpoSection) and state.critic is not None
    batch = rollout(state, step)
    batch = batch.extended(values=read(state, state.critic, batch, read_values))
    record("reference", "values", batch["values"])
    step.metrics["kl_coef"] = state.kl_coef

    mask, included = batch["loss_mask"], batch["included"]
    rewards = at_last_token(batch["rewards"].float(), mask, included)
    if state.reference is not None:
        rewards = in_rewards(rewards, batch["rollout_logprobs"], batch["ref_logprobs"], mask, kl_coef=state.kl_coef)
        adapt_kl_coef(state, section, batch)
    estimated, returns = gae(rewards, batch["values"], mask, included, gamma=section.gamma, lam=section.lam)
    advantage = whiten(estimated, mask, included) if section.whitens_advantages else estimated
    batch = batch.extended(returns=returns, advantages=advantage)
    record("reward", "token_rewards", rewards)
    record.all("advantage", [(name, batch[name]) for name in ("advantages", "returns")])

    for minibatch in minibatches(state, step, batch):
        update(state, step, state.critic, minibatch, partial(critic_loss, config, minibatch.denominators))
        if step.number >= section.num_critic_warmup_steps:
            update(state, step, state.policy, minibatch, partial(policy_loss, config, minibatch.denominators))
    sync_weights(state, step)


def adapt_kl_coef(state: TrainState, section: PpoSection, batch: Batch) -> None:
    """Move the coefficient of the next step towards `algorithm.kl_target`."""
    if section.kl_target is None:
        return
    mask, included = batch["loss_mask"], batch["included"]
    kl = approx_kl(batch["rollout_logprobs"], batch["ref_logprobs"], mask, "k1")
    state.kl_coef = adaptive_kl_coef(
        state.kl_coef,
        mean(kl[included_tokens(mask, included)].tolist()),
        target_kl=section.kl_target,
        num_samples=int(included.sum()),
        horizon=section.kl_horizon,
    )


def critic_loss(
    config: RunConfig, denominators: Denominators, critic: nn.Module, microbatch: Microbatch
) -> MicrobatchLoss:
    """Compute the distance of the critic from the returns as a microbatch's share."""
    section, mask, expected = config.algorithm, microbatch["loss_mask"], read_values(critic, microbatch)
    assert isinstance(section, PpoSection)
    found = value_loss(expected, microbatch["values"], microbatch["returns"], mask, clip_eps=section.value_clip_eps)
    shares = sample_shares(found.losses, mask, config.aggregation, denominators)
    return MicrobatchLoss(shares.sum(), {"values": expected.detach(), "clipped": found.clipped.float()}, mask)


def read_values(critic: nn.Module, microbatch: Microbatch) -> Tensor:
    """Return what the critic expects before each of the tokens from `first` on: [samples, length - first]."""
    expected: Tensor = critic(microbatch.tokens[:, :-1])
    return expected[:, microbatch.first - 1 :]


# ----------------------------------------------------------------------------------------------------- parts of a step


def learning_rate(section: OptimizerSection, peak: float, step: int, num_steps: int) -> float:
    """Return the learning rate of a step, which follows from its number alone: `optimizer.schedule`."""
    if section.schedule == "constant":
        return constant_lr(step, peak=peak, num_warmup_steps=section.num_warmup_steps)
    return (linear_lr if section.schedule == "linear" else cosine_lr)(
        step,
        peak=peak,
        num_steps=num_steps,
        num_warmup_steps=section.num_warmup_steps,
        final_ratio=section.final_ratio,
    )


def greedy_rewards(state: TrainState, step: Step) -> Tensor:
    """Return ReMax's baselines, fp32 [samples]: the reward of the greedy completion of each sample's prompt.

    One is drawn per prompt. Raises RewardError if one has no reward.
    """
    config = state.config
    prompts = {each.request.prompt.id: each.request.prompt for each in step.rollouts}
    params = replace(sampling_params(config, state.tokenizer), temperature=0.0)
    # Nothing is drawn by chance; the key is for those who tell completions apart by it.
    wanted = [
        SampleRequest(prompt, 0, key("greedy", config.seed, step.number, prompt.id), params)
        for prompt in prompts.values()
    ]
    scores = score_rollouts(state, sample(state, wanted), step.number)
    rewards = dict(zip(prompts, scores.rewards, strict=True))
    if unjudged := [name for name, reward in rewards.items() if reward is None]:
        raise RewardError(
            f"the greedy completion of prompt {unjudged[0]} has no reward, and it is ReMax's baseline",
            legal="a number for every greedy completion",
            remedy="algorithm.advantage: rloo, which needs none",
        )
    baselines = [rewards[each.request.prompt.id] for each in step.rollouts]
    return torch.tensor(baselines, dtype=torch.float32, device=config.model.device)


def sampling_params(config: RunConfig, tokenizer: Tokenizer) -> SamplingParams:
    """Return the configured sampling parameters, with the tokenizer's other stop tokens."""
    section = config.sampling
    return SamplingParams(
        max_tokens=section.max_tokens,
        temperature=section.temperature,
        top_k=section.top_k,
        top_p=section.top_p,
        min_p=section.min_p,
        stop_ids=tokenizer.stop_ids,
        stop_strings=section.stop_strings,
    )


def beam_params(config: RunConfig, tokenizer: Tokenizer) -> BeamParams | None:
    """Return the configured search for items; None if completions have none. Raises InvalidValueError."""
    section = config.sampling.two_stage
    if section is None:
        return None
    return BeamParams(
        num_beams=section.num_beams,
        max_tokens=section.max_item_tokens,
        forced=tuple(tokenizer.encode(section.forced_text)),
        stop_ids=tokenizer.stop_ids,
    )


def rest(state: TrainState, *models: Trainer | None) -> None:
    """Let those of the models that `deployment.offload` names leave their devices until they are used again.

    Raises PlacementError if they cannot.
    """
    section = state.config.deployment
    directory = Path(section.offload_directory) if section.offload_directory else None
    for model in models:
        if model is not None and model.name in section.offload:
            try:
                model.rest(directory)
            except OSError as error:
                raise PlacementError(
                    f"the {model.name} cannot leave its device for {section.offload_directory}: {error.strerror}",
                    legal="a directory on a disk that has room for its weights and its optimizer",
                    remedy="another deployment.offload_directory, or no deployment.offload",
                ) from error


# ---------------------------------------------------------------------------------------------------------- warm start


def warm_start(state: TrainState, log: RunLog) -> None:
    """Teach the policy the task's answers, `warm_start`: from random weights no reward is ever seen to rise.

    Supervised steps on training prompts; the rate falls to a tenth in a line, gradients are clipped to a norm of 1.
    AdamW begins again after them. Raises InvalidValueError if the task has no answers.
    """
    config, policy, prompts = state.config, state.policy, state.task.train
    section, before = config.warm_start, digest_of(state.policy.weights())
    steps: list[tuple[float, str, float]] = []
    log.phase("warm start", section.num_steps)
    for number in range(section.num_steps):
        chosen = epoch_items(number * section.batch_size, section.batch_size, len(prompts), config.seed, "warm_start")
        batch = answers([prompts[index] for index in chosen], state.tokenizer, state.task.environments)
        batch = batch.to(config.model.device)
        minibatch = divide(state, batch, list(range(section.batch_size)))
        losses = policy.forward_backward(minibatch.microbatches, partial(answer_loss, minibatch.denominators))
        digest = policy.gradient_digest()
        rate = linear_lr(number, peak=section.learning_rate, num_steps=section.num_steps, final_ratio=0.1)
        norm = policy.optimizer_step(learning_rate=rate, max_norm=1.0)
        steps.append((math.fsum(float(each.loss) for each in losses), digest, norm))
        log.advance(loss=steps[-1][0])
        if section.target_reward is not None and (number + 1) % section.check_every == 0:
            sync(policy.weights(), state.sampler.weight_target, 0, None)
            if evaluate(state, prompts[: len(state.task.heldout)], step=0).reward_mean >= section.target_reward:
                break
    policy.restart_optimizer()
    state.warm_start = before, steps


def answer_loss(denominators: Denominators, policy: nn.Module, microbatch: Microbatch) -> MicrobatchLoss:
    """Compute the cross-entropy of answers as a microbatch's share of the loss."""
    mask, losses = microbatch["loss_mask"], -read_logprobs(1.0, policy, microbatch)
    return MicrobatchLoss(sample_shares(losses, mask, "token-mean", denominators).sum(), observed={}, loss_mask=mask)


def answers(prompts: list[Prompt], tokenizer: Tokenizer, environments: Environments | None = None) -> Batch:
    """Build a dense batch of prompts with their answers and an end of sequence; the answers are learned.

    In an environment a prompt's demonstration is played: the environment's answers are not learned.
    """
    pairs = []
    for prompt in prompts:
        if not isinstance(answer := prompt.columns.get("answer"), str):
            raise InvalidValueError(
                f"prompt {prompt.text!r} has no column `answer`, which a warm start learns",
                remedy="warm_start.num_steps: 0, or a column of texts",
            )
        if environments is not None:
            shown = demonstrate(environments, prompt, prompt.columns.get(DEMONSTRATION, [answer]))
            pairs.append((shown.tokens, shown.loss_mask))
        else:
            learned = [*tokenizer.encode(answer), tokenizer.eos_id]
            pairs.append(((*prompt.tokens, *learned), (False,) * len(prompt.tokens) + (True,) * len(learned)))
    sequences = {
        "tokens": [torch.tensor(tokens) for tokens, _ in pairs],
        "loss_mask": [torch.tensor(mask) for _, mask in pairs],
    }
    batch = collate(sequences, pad_values={"tokens": tokenizer.pad_id})
    return batch.extended(prompt_lengths=torch.tensor([len(prompt.tokens) for prompt in prompts]))


# ----------------------------------------------------------------------------------------------- the loop around steps


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the policy makes of some prompts."""

    trajectories: tuple[Trajectory, ...]
    scores: Scores
    reward_mean: float
    """Mean over the completions that have a reward."""
    pass_at: Mapping[int, float]
    """k -> mean over prompts of the chance that one of k completions passes; empty if a prompt has one completion."""


def evaluate(state: TrainState, prompts: Sequence[Prompt], *, step: int) -> Evaluation:
    """Sample these prompts, with the same noise at every evaluation, by the weights the sampler has: `evaluation`.

    Of several items of a prompt, the best by the sampler's score is evaluated. Raises RewardError if none has a reward.
    """
    config, section = state.config, state.config.evaluation
    params, beams = sampling_params(config, state.tokenizer), beam_params(config, state.tokenizer)
    if section.temperature is not None:
        params = replace(params, temperature=section.temperature)
    wanted = [
        SampleRequest(prompt, at, key("evaluation", config.seed, prompt.id, *[at][:at]), params, beams)
        for prompt in prompts
        for at in range(section.num_samples)
    ]
    with state.clock("evaluation"):
        trajectories = best_completions(collect(state, wanted))
        scores = score(state.task.rewards, trajectories, step=step)  # whole completions, not a reasoning beside items
    judged = [reward for reward in scores.rewards if reward is not None]
    if not judged:
        raise RewardError(
            f"{', '.join(reward.name for reward in state.task.rewards)}"
            f" returned no reward for {len(trajectories)} completions",
            legal="a number for at least one",
        )
    passes = [reward is not None and reward >= section.pass_reward for reward in scores.rewards]
    return Evaluation(tuple(trajectories), scores, mean(judged), pass_at(passes, section.num_samples))


def pass_at(passes: Sequence[bool], num_samples: int) -> dict[int, float]:
    """Return, for k of 1, 2, 4 ..., the mean over prompts of the chance that one of k of their completions passes.

    Without bias: 1 - C(n - c, k) / C(n, k), with c of n that pass (arXiv:2107.03374). Empty for one completion.
    """
    counts = [sum(passes[at : at + num_samples]) for at in range(0, len(passes), num_samples)]
    powers = [2**power for power in range(num_samples.bit_length())] if num_samples > 1 else []
    return {k: mean(1 - math.comb(num_samples - c, k) / math.comb(num_samples, k) for c in counts) for k in powers}


def loop(state: TrainState, first: int, directory: Path, log: RunLog) -> None:
    """Make the steps from `first` on, with the evaluations and checkpoints due between them."""
    output, num_steps = state.config.output, state.config.training.num_steps
    state.receipt = sync(state.policy.weights(), state.sampler.weight_target, first, None)
    if first == 0:
        state.first_evaluation = evaluate(state, state.task.heldout, step=0)
        log.evaluation(0, state.first_evaluation)
    log.phase("training", num_steps, first)
    say, means = log.say if output.shows_progress else (lambda line: None), set[float]()
    for number in range(first, num_steps):
        metrics = make_step(state, number, say)
        log.step(number, metrics)
        means.add(metrics["reward_mean"])
        done, is_last = number + 1, number + 1 == num_steps
        if is_last or (output.evaluate_every and done % output.evaluate_every == 0):
            log.evaluation(done, evaluate(state, state.task.heldout, step=done))
        if is_last or (output.checkpoint_every and done % output.checkpoint_every == 0):
            save_checkpoint(state, directory / DIRECTORY, done)
    if len(means) == 1 and num_steps - first > 1:
        say(f"the mean reward was {means.pop():.3f} in all {num_steps - first} steps: check the reward functions")
    for line in state.clock.lines():
        say(line)


def make_step(state: TrainState, number: int, say: Callable[[str], None] = lambda line: None) -> dict[str, float]:
    """Make one step of the algorithm, recorded and checked, and return its metrics. A LevelError names the step."""
    step, record = Step(number), state.record
    record.begin_step(number)
    if number == 0:
        record_start(state)
    try:
        (grpo if isinstance(state.config.algorithm, GrpoSection) else ppo)(state, step)
        state.checks.after(step)
    except LevelError as error:
        raise error.in_step(number) from error.__cause__
    if not bool(step.batch["advantages"].any()):
        say(f"step {number}: rewards have no spread, so that every advantage is 0")
    metrics = metrics_of_step(step)
    record.end_step(**{name: metrics[ours] for name, ours in CURVE.items() if ours in metrics})
    return metrics | state.clock.take()


CURVE = {
    "reward_mean": "reward_mean",
    "loss": "loss",
    "gradient_norm": "grad_norm",
    "kl": "approx_kl",
    "entropy": "entropy",
    "completion_length": "completion_length",
}
"""Names in a trace's curve, and in metrics."""


def record_start(state: TrainState) -> None:
    """Record, as the first values of step 0, the warm start and the evaluation that came before it.

    Later evaluations are as often as a setting that moves no bit says, and are not recorded.
    """
    record = state.record
    if state.warm_start is not None:
        digest, steps = state.warm_start
        record("optimizer", "warm_start.weights_digest", digest)
        for loss, gradient_digest, norm in steps:
            record("loss", "warm_start", loss)
            record("backward", "warm_start.gradient_digest", gradient_digest)
            record("optimizer", "warm_start.gradient_norm", norm)
    if (found := state.first_evaluation) is not None:
        prompts = [each.request.prompt.id for each in found.trajectories]
        tokens = [token for each in found.trajectories for token in each.tokens]
        record.all("rollout", [("evaluation.prompt_ids", prompts), ("evaluation.tokens", tokens)])
        rewards = [math.nan if reward is None else reward for reward in found.scores.rewards]
        record("reward", "evaluation.rewards", torch.tensor(rewards, dtype=torch.float64))


def metrics_of_step(step: Step) -> dict[str, float]:
    """Return the numbers of a step: of its completions, and of its updates; those of the critic begin with critic_.

    Lengths and rewards are the batch's, from which the step learns. Several updates of one model are averaged. A mean
    over no value is NaN.
    """
    batch = step.batch
    lengths, included = batch["loss_mask"].sum(-1).tolist(), batch["included"].tolist()
    rewards = [reward for reward, counts in zip(batch["rewards"].tolist(), included, strict=True) if counts]
    metrics = dict(step.metrics)
    if step.requests[0].beams:
        num_items = [len(items) for _, *items in by_request(step.rollouts)]
        metrics["items_per_reasoning"] = mean(num_items)
        metrics["reasonings_without_items"] = mean([not each for each in num_items])
    if any(each.outcome for each in step.rollouts):
        metrics["turns"] = mean([len(each.assistant_turns) for each in step.rollouts])
        metrics["with_errors"] = mean([bool(first_error(each)) for each in step.rollouts])
    metrics |= {
        "completion_length": mean(lengths),
        "completion_length_min": min(lengths),
        "completion_length_max": max(lengths),
        "truncated": mean([each.is_truncated for each in step.rollouts]),
        "unjudged": len(included) - len(rewards),
        "reward_mean": mean(rewards) if rewards else math.nan,
        "reward_std": statistics.pstdev(rewards) if rewards else math.nan,
    }
    if len(step.scores.by_function) > 1:
        for name, column in step.scores.by_function.items():
            given = [value for value in column if value is not None]
            metrics[f"rewards/{name}"] = mean(given) if given else math.nan
    for trainer in dict.fromkeys(update.trainer for update in step.updates):
        prefix = "" if trainer == "policy" else f"{trainer}_"
        found = [_metrics_of_update(update) for update in step.updates if update.trainer == trainer]
        metrics |= {prefix + name: mean([each[name] for each in found]) for name in found[0]}
    differing = [found for found in (mismatch_of(*each[:3]) for each in step.matched) if found is not None]
    metrics["mismatch/num_tokens"] = float(sum(found.num_different for found in differing))
    metrics["mismatch/max_nats"] = max([0.0, *(found.largest for found in differing)])
    return metrics


def _metrics_of_update(update: Update) -> dict[str, float]:
    mask = torch.cat([each.loss_mask.reshape(-1) for each in update.losses])
    values = {
        "loss": math.fsum(float(each.loss) for each in update.losses),
        "grad_norm": update.norm,
        "learning_rate": update.learning_rate,
    }
    for name in update.losses[0].observed:
        if name != "logprobs":
            values[name] = mean(torch.cat([each.observed[name].reshape(-1) for each in update.losses])[mask].tolist())
    return values
