"""GRPO in three functions: a second writing of what `rlharness train grpo_sorting` computes, without trainers.

    python -m tests.support.engine_page CONFIG.json OUT

OUT/curve.json has the loss and the gradient norm of each step, OUT/policy.safetensors the weights after the last one.
It shares the operations with the engine (decoder, sampling, estimators, losses), and nothing of what connects them.
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlcore.algorithms import advantages
from rlcore.algorithms.aggregation import Denominators, sample_shares
from rlcore.algorithms.losses import Tokens, ppo_clip
from rlcore.config import GrpoSection, RunConfig, read_config
from rlcore.data.batch import Batch, dense_batch
from rlcore.data.microbatches import fixed_microbatches
from rlcore.data.scoring import score
from rlcore.data.tasks import Task, make_task
from rlcore.data.trajectory import build_single_turn
from rlcore.determinism import at_level
from rlcore.models.build import build_model
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import log_softmax
from rlcore.numerics.tree_sum import TreeSum
from rlcore.samplers.batching import ContinuousBatch
from rlcore.samplers.stopping import reason
from rlcore.seeds import completion_key, epoch_items
from rlcore.types import SampleRequest, SamplingParams, Tokenizer


def train(config: RunConfig) -> tuple[Decoder, list[dict[str, float]]]:
    """Train at level invariant; return the policy, and loss and gradient norm of each step."""
    tokenizer, policy = build_model(config)
    task, section = make_task(config.task, tokenizer, config.seed), config.optimizer
    assert section.max_gradient_norm is not None
    parameters = list(policy.parameters())
    optimizer = torch.optim.AdamW(
        parameters,
        lr=section.learning_rate,
        betas=(section.beta1, section.beta2),
        eps=section.eps,
        weight_decay=section.weight_decay,
        foreach=True,
    )
    length = max(len(prompt.tokens) for prompt in (*task.train, *task.heldout)) + config.sampling.max_tokens
    curve = []
    with at_level("invariant", policy.config, dtype=policy.embedding.dtype, length=length, threads=(1, 1)):
        for step in range(config.training.num_steps):
            batch = rollout(config, policy, tokenizer, task, step)
            loss, gradients = loss_and_gradients(config, policy, batch)
            rows = [
                each.double().square().reshape(-1, each.shape[-1] if each.dim() else 1).sum(-1) for each in gradients
            ]
            norm = math.sqrt(math.fsum(torch.cat(rows).tolist()))
            factor = min(1.0, section.max_gradient_norm / norm)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            curve.append({"loss": loss, "grad_norm": norm})
    return policy, curve


def rollout(config: RunConfig, policy: Decoder, tokenizer: Tokenizer, task: Task, step: int) -> Batch:
    """Draw the completions of a step; return them with their rewards and advantages."""
    count, sampling = config.training.prompts_per_step, config.sampling
    params = SamplingParams(
        max_tokens=sampling.max_tokens, temperature=sampling.temperature, stop_ids=tokenizer.stop_ids
    )
    wanted = []
    for at in epoch_items(step * count, count, len(task.train), config.seed, "prompts"):
        for index in range(config.training.group_size):
            key = completion_key(seed=config.seed, step=step, prompt_id=task.train[at].id, sample_index=index)
            wanted.append(SampleRequest(task.train[at], index, key, params))
    with torch.inference_mode():
        drawn = ContinuousBatch(policy, tokenizer, concurrency=64).run(wanted)
    rollouts = [
        build_single_turn(
            each.request,
            each.tokens,
            each.logprobs,
            text=tokenizer.decode(each.tokens),
            stop_reason=reason(each.tokens, each.request.params, tokenizer.eos_id, by_text=each.is_by_text),
            policy_version=step,
            weights_digest="",
        )
        for each in drawn
    ]
    batch = dense_batch(rollouts, score(task.rewards, rollouts, step=step), pad_id=tokenizer.pad_id)
    by_sample = advantages.rloo(batch["rewards"], batch["groups"], batch["included"])
    return batch.extended(advantages=advantages.per_token(by_sample, batch["loss_mask"]).float())


def loss_and_gradients(config: RunConfig, policy: Decoder, batch: Batch) -> tuple[float, list[Tensor]]:
    """Compute the loss of a batch, and the gradient of each parameter."""
    algorithm, samples, parameters = config.algorithm, list(range(len(batch["tokens"]))), list(policy.parameters())
    assert isinstance(algorithm, GrpoSection)
    denominators = Denominators(int(batch["loss_mask"].sum()), len(samples), config.sampling.max_tokens)
    size, budget = config.microbatch_size, config.runtime.token_budget
    microbatches = fixed_microbatches(batch, samples, size, token_budget=budget)
    sums, losses = [TreeSum(len(microbatches)) for _ in parameters], []
    for microbatch in microbatches:
        first, mask = microbatch.first, microbatch["loss_mask"]
        logits = policy.logits(policy.hidden(microbatch.tokens[:, :-1])[:, first - 1 :])
        vocabulary = log_softmax(logits / config.sampling.temperature)
        logprobs = vocabulary.gather(-1, microbatch.tokens[:, first:].unsqueeze(-1)).squeeze(-1)
        surrogate = ppo_clip(
            Tokens(logprobs, logprobs.detach(), microbatch["rollout_logprobs"], microbatch["advantages"], mask),
            **{name: value for name in ("clip_eps_low", "clip_eps_high") if (value := getattr(algorithm, name))},
        )
        loss = sample_shares(surrogate.losses, mask, config.aggregation, denominators).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
        for tree, parameter in zip(sums, parameters, strict=True):
            gradient = parameter.grad
            tree.add(microbatch.number, torch.zeros_like(parameter) if gradient is None else gradient.float())
            parameter.grad = None
    gradients = [total for tree in sums if (total := tree.total()) is not None]
    return math.fsum(losses), gradients


def main(config: str, out: str) -> None:
    """Train, and write curve and weights."""
    torch.set_num_threads(1)
    policy, curve = train(read_config(json.loads(Path(config).read_text("utf-8"))))
    Path(out, "curve.json").write_text(json.dumps(curve), "utf-8")
    save_file({name: each.detach() for name, each in policy.named_parameters()}, f"{out}/policy.safetensors")


if __name__ == "__main__":
    main(*sys.argv[1:])
