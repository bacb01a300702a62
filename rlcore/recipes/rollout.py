"""From the number of a step to a batch: its prompts, their completions, their rewards, in canonical order.

Canonical is by prompt as drawn, then by number. Completions arrive in any order, and are put there before anything
reads them.
"""

from collections.abc import Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from rlcore.checks.step_checks import check_batch, check_completions, check_requests, check_sent, check_undrawn
from rlcore.config import PerturbationSection
from rlcore.keys import completion_key, epoch_items, permutation
from rlcore.numerics.probe import num_threads
from rlcore.rewards.score import Scores, score, shuffled
from rlcore.samplers.base import Sampler
from rlcore.trace import Recorder
from rlcore.train_state import Engine
from rlcore.types import Completion, Prompt, SampleRequest, SamplingParams


def rollout(engine: Engine, step: int) -> tuple[list[Completion], Scores, TensorDict]:
    """The completions of one step, what they are worth, and both as a dense batch."""
    config = engine.config
    with engine.phases("rollout"), check_undrawn("rollout"):
        check_sent(engine.decoder, engine.receipt)
        wanted = requests(engine, prompts_of(engine, step), step)
        engine.keys = check_requests(wanted, engine.keys)
        completions = collect(engine.sampler, wanted, config.perturbation)
        check_completions(wanted, completions, engine.receipt, engine.tokenizer)
    with engine.phases("reward"):
        scores = score(engine.task.rewards, completions, step=step)
        if config.task.shuffles_rewards:
            scores = shuffled(scores, config.seed, step)
    batch = dense_batch(completions, scores, pad_id=engine.tokenizer.pad_id).to(engine.config.model.device)
    check_batch(batch, completions, scores)
    record_rollout(engine.recorder, completions, batch)
    return completions, scores, batch


def prompts_of(engine: Engine, step: int) -> list[Prompt]:
    """Those of one step: a keyed order, every prompt once an epoch."""
    count = engine.config.training.prompts_per_step
    prompts = engine.task.train
    return [prompts[i] for i in epoch_items(step * count, count, len(prompts), engine.config.seed, "prompts")]


def requests(engine: Engine, prompts: Sequence[Prompt], step: int) -> list[SampleRequest]:
    """`group_size` for each prompt; one that comes twice, where an epoch ends, counts on."""
    config, params = engine.config, sampling_params(engine)
    seen: dict[str, int] = {}
    wanted = []
    for prompt in prompts:
        first = seen.get(prompt.id, 0)
        seen[prompt.id] = first + config.training.group_size
        for index in range(first, seen[prompt.id]):
            key = completion_key(seed=config.seed, step=step, prompt_id=prompt.id, sample_index=index)
            wanted.append(SampleRequest(prompt, index, key, params))
    return wanted


def sampling_params(engine: Engine) -> SamplingParams:
    """Those of the configuration, and what else ends a completion of this tokenizer."""
    section = engine.config.sampling
    return SamplingParams(
        max_tokens=section.max_tokens,
        temperature=section.temperature,
        top_k=section.top_k,
        top_p=section.top_p,
        min_p=section.min_p,
        stop_ids=engine.tokenizer.stop_ids,
        stop_strings=section.stop_strings,
    )


def collect(sampler: Sampler, wanted: Sequence[SampleRequest], perturbation: PerturbationSection) -> list[Completion]:
    """The completions of these requests, in their order, whatever the order in which the sampler is given them."""
    order = list(range(len(wanted)))
    if perturbation.arrival_seed:
        order = permutation(len(wanted), "arrival", perturbation.arrival_seed)
    with num_threads(perturbation.sampling_threads):
        arrived = sampler.sample([wanted[index] for index in order])
    found = dict(zip(order, arrived, strict=True))
    return [found[index] for index in range(len(wanted))]


def dense_batch(completions: Sequence[Completion], scores: Scores, *, pad_id: int) -> TensorDict:
    """[samples, positions]: tokens of prompt and completion, what was sampled of them, and a number a sample."""
    pairs = [(completion.request.prompt.tokens, completion.tokens) for completion in completions]
    lengths = torch.tensor([len(prompt) + len(drawn) for prompt, drawn in pairs])
    prompt_lengths = torch.tensor([len(prompt) for prompt, _ in pairs])
    positions = torch.arange(int(lengths.max()))
    # All samples in one tensor, then put where they belong: a tensor for each of them costs more than what is in it.
    is_read = positions < lengths.unsqueeze(1)
    is_drawn = is_read & (positions >= prompt_lengths.unsqueeze(1))
    tokens = torch.tensor([token for prompt, drawn in pairs for token in (*prompt, *drawn)])
    return TensorDict(
        {
            "tokens": torch.full(is_read.shape, pad_id).masked_scatter_(is_read, tokens),
            "loss_mask": is_drawn,
            "rollout_logprobs": torch.zeros(is_read.shape).masked_scatter_(
                is_drawn, torch.cat([completion.logprobs for completion in completions])
            ),
            "lengths": lengths,
            "prompt_lengths": prompt_lengths,
            "groups": groups_of(completions),
            "rewards": torch.tensor([0.0 if r is None else r for r in scores.rewards], dtype=torch.float64),
            "included": torch.tensor(scores.included),
        },
        batch_size=[len(completions)],
    )


def groups_of(completions: Sequence[Completion]) -> Tensor:
    """int64 [samples]: the same number for completions of the same prompt."""
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(c.request.prompt.id, len(numbers)) for c in completions])


def record_rollout(recorder: Recorder, completions: Sequence[Completion], batch: TensorDict) -> None:
    """What was drawn, from which weights, and what it was worth: all that a step reads of its batch."""
    recorder.record("rollout", "prompt_ids", [completion.request.prompt.id for completion in completions])
    recorder.record("rollout", "weights_digest", sorted({completion.weights_digest for completion in completions}))
    recorder.record("rollout", "loss_mask", batch["loss_mask"])
    recorder.record("rollout", "tokens", batch["tokens"])
    recorder.record("rollout", "logprobs", batch["rollout_logprobs"])
    for name in ("prompt_lengths", "lengths", "groups"):
        recorder.record("rollout", name, batch[name])
    recorder.record("reward", "included", batch["included"])
    recorder.record("reward", "rewards", batch["rewards"])
