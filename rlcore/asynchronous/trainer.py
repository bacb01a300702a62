"""The trainer: weights N and batch N make weights N+1.

    batches/step_N ─▶ passes, loss, update ─▶ broadcasts/step_N+1 ─▶ checkpoints/, every n steps

The same batch gives the same weights, so that a step that a kill has lost is made again with equal bits, and publishing
it again finds the same bits there. The loss is masked importance sampling: completions are of earlier weights.
"""

import copy
import json
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.algorithms.advantages import per_token
from rlcore.algorithms.aggregation import Denominators, sample_shares
from rlcore.algorithms.losses import Tokens, masked_is, masked_is_keep
from rlcore.algorithms.schedules import noise_sigma
from rlcore.asynchronous.broadcast import NORMS, Digests, from_files, to_files
from rlcore.asynchronous.directory import (
    BATCHES,
    BROADCASTS,
    CHECKPOINTS,
    METRICS,
    METRICS_LOG,
    POLL_S,
    append,
    is_there,
    path_of,
    publish,
    read,
    read_batch,
    retire,
)
from rlcore.asynchronous.settings import LossSection, Train, training_config
from rlcore.checkpoint import load_newest, save
from rlcore.checks import mismatch_of
from rlcore.data.batch import Batch, collate
from rlcore.data.microbatches import Microbatch, fixed_microbatches, microbatches_by_budget
from rlcore.errors import CheckpointError, LevelError
from rlcore.log import Record, mean
from rlcore.models.adapters import save as save_adapters
from rlcore.models.checkpoints import save as save_decoder
from rlcore.models.decoder import Decoder
from rlcore.seeds import key
from rlcore.train import learning_rate, read_tokens
from rlcore.trainers.gradients import MicrobatchLoss
from rlcore.trainers.trainer import Trainer
from rlcore.types import Tokenizer

TOO_MANY_MASKED = 0.5
"""Share of masked tokens above which a run is warned about."""


READ_EVERY, NUM_READ = 4, 4
"""Versions from one whose completions are read again to the next, and how many of them are."""
OTHER_WEIGHTS = {"fp32": 1e-2, "bf16": 0.1}
"""Mean distance in nats, by recipe, from which log-probabilities are not a matter of rounding."""


class AsynchronousTrainer:
    """What makes the weights of one run."""

    def __init__(
        self,
        section: Train,
        run: Path,
        policy: Trainer,
        tokenizer: Tokenizer,
        *,
        record: Record,
        say: Callable[[str], None] = print,
    ) -> None:
        self._section, self._run, self._tokenizer, self._record, self._say = section, run, tokenizer, record, say
        self._config, self.policy = training_config(section), policy
        self._broadcasts, self._next_reading = run / BROADCASTS, 1
        self._digests = Digests(policy.weights().decoder())

    def work(self, tend: Callable[[], None] = lambda: None) -> None:
        """Train batches, from the newest checkpoint to the last batch; `tend` is called while it waits for one.

        Raises CheckpointError, LevelError, and what `tend` raises.
        """
        step, last = self._resume(), self._section.max_steps
        if 0 <= last <= step:
            self._say(f"all {last} steps are made: a larger max_steps, in orch.yaml too, goes on")
        if step and read_batch(self._run, step - 1)["is_over"]:
            self._say(f"no prompt is left after {step} steps")
            return
        if not step:
            self._broadcast(0, {})
        while last < 0 or step < last:
            began_s = time.monotonic()
            if not step and not is_there(self._run / BATCHES, step):
                self._say("waits for the first batch")
            while not is_there(self._run / BATCHES, step):
                tend()
                time.sleep(POLL_S)
            wait_s, batch = time.monotonic() - began_s, read_batch(self._run, step)
            metrics = self.step(step, batch)
            step += 1
            self._broadcast(step, metrics)
            is_end = batch["is_last"] or step == last
            self._save(step, batch["ckpt"], is_end=is_end)
            retire(self._broadcasts, batch["needs_from"])
            self._log(metrics, wait_s, time.monotonic() - began_s)
            if is_end:
                return

    def step(self, number: int, batch: Mapping[str, Any]) -> dict[str, float]:
        """Make a step of masked importance sampling from a batch, and return its numbers."""
        record, section, optimizer = self._record, self._section, self._config.optimizer
        scored = [row for row in batch["rows"] if row["reward"] is not None]
        learned = [row for row in scored if any(row["mask"])]  # a filter may have left no token of a sample
        if not learned:
            self._say(f"step {number}: no token is trained, and the weights stay")
            return {"step": number, "tokens": 0}
        record.begin_step(number)
        columns = columns_of(learned, pad_id=self._tokenizer.pad_id, adv_tau=section.loss.adv_tau).to(section.device)
        record("rollout", "prompt_ids", [row["prompt"] for row in learned])
        record("rollout", "policy_versions", [row["version"] for row in learned])
        named = [
            ("tokens", "tokens"),
            ("loss_mask", "loss_mask"),
            ("logprobs", "rollout_logprobs"),
            ("groups", "groups"),
        ]
        record.all("rollout", [(name, columns[key]) for name, key in named])
        record("reward", "rewards", columns["rewards"])
        record("advantage", "advantages", columns["advantages"])

        samples, budget = list(range(len(learned))), self._config.runtime.token_budget
        denominators = Denominators(int(columns["loss_mask"].sum()), len(samples))
        if self._section.level == "invariant":
            size = section.per_device_train_batch_size
            passes = fixed_microbatches(columns, samples, size, token_budget=budget)
        else:
            passes = microbatches_by_budget(columns, samples, token_budget=budget)
        losses = self.policy.forward_backward(passes, partial(masked_is_loss, section.loss, denominators))
        for each in losses:
            observed = {name: torch.where(each.loss_mask, value, 0.0) for name, value in each.observed.items()}
            record.all("forward", [(f"policy.{name}", value) for name, value in observed.items()])
            record("loss", "policy", each.loss)
        self._check_sampled(number, learned, columns, passes, losses)
        rate = learning_rate(optimizer, section.learning_rate, number, section.max_steps)
        norm = self.policy.optimizer_step(learning_rate=rate, max_norm=optimizer.max_gradient_norm)
        record("backward", "policy.gradient_norm", norm)
        record("optimizer", "policy.learning_rate", rate)
        names = ("kl", "masked", "teacher_kl") if "teacher_logprobs" in columns else ("kl", "masked")
        seen = {name: torch.cat([each.observed[name][each.loss_mask] for each in losses]).tolist() for name in names}
        if not any(seen.get("teacher_kl", [1.0])):
            self._say(f"step {number}: the teacher has the policy's own probabilities, and teaches nothing")
        metrics = {
            "step": number,
            "reward_mean": mean([row["reward"] for row in scored]),
            "loss": math.fsum(float(each.loss) for each in losses),
            "grad_norm": norm,
            **{name: mean(values) for name, values in seen.items()},
            "tokens": denominators.num_tokens,
            "learning_rate": rate,
            "versions_apart": max(number - row["version"] for row in learned),
        }
        record.end_step(**{name: metrics[name] for name in ("reward_mean", "loss", "kl")}, gradient_norm=norm)
        return metrics

    def _check_sampled(
        self,
        number: int,
        rows: list[dict[str, Any]],
        columns: Batch,
        passes: list[Microbatch],
        losses: tuple[MicrobatchLoss, ...],
    ) -> None:
        """Check that the sampler's log-probabilities are the trainer's, of the weights that drew the completions.

        Those of the present weights have just been read. Of earlier ones, a few are read again now and then, by the
        weights as they were published. Raises LevelError at level invariant, and says it at others.
        """
        section, versions = self._section, [row["version"] for row in rows]
        present = [(each, loss.observed["logprobs"], number) for each, loss in zip(passes, losses, strict=True)]
        compared = [] if section.noise_scheduler.enabled else present  # the trainer's norms have none
        earlier = min(versions)
        if (
            earlier >= self._next_reading
            and not (compared and earlier == number)
            and is_there(self._broadcasts, earlier)
        ):
            self._next_reading = earlier + READ_EVERY
            few = [at for at, version in enumerate(versions) if version == earlier][:NUM_READ]
            decoder, budget = self._decoder_of(earlier), self._config.runtime.token_budget
            with torch.no_grad():
                for each in microbatches_by_budget(columns, few, token_budget=budget):
                    compared.append((each, read_tokens(each["temperatures"].tolist(), decoder, each)[0], earlier))
        for each, logprobs, version in compared:
            is_its = torch.tensor([versions[at] == version for at in each.samples], device=logprobs.device)
            mask, sampled = each["loss_mask"] & is_its[:, None], each["rollout_logprobs"]
            if (found := mismatch_of(logprobs, sampled, mask)) is None:
                continue
            distance, row = float((logprobs - sampled)[mask].abs().mean()), rows[each.samples[found.row]]
            what = (
                f"the log-probability by weights {version} is not the sampler's for {found.num_different} of"
                f" {found.num_tokens} tokens, by {distance:.2g} nats on average, most for sample {row['sample']} of"
                f" group {row['group']}: other weights, tokens or temperature"
            )
            if section.level == "invariant":
                raise LevelError(
                    f"{what}, or operations",
                    legal="equal bits at level invariant",
                    remedy="start the samplers again; rlharness doctor --numerics, on the machines of both",
                    phases=("rollout", "forward"),
                ).in_step(number)
            if not distance <= OTHER_WEIGHTS[section.recipe]:
                self._say(f"step {number}: {what}")
                return

    def _decoder_of(self, version: int) -> Decoder:
        """Build the model of a published version, with the noise of its norms."""
        decoder = self.policy.weights().decoder()
        lora, has_norms = decoder.config.lora, (path_of(self._broadcasts, version) / NORMS).exists()
        given = from_files(partial(read, self._broadcasts, version), decoder.config, has_norms=has_norms)
        decoder = decoder.with_adapters(lora) if lora else copy.deepcopy(decoder)
        for name, parameter in decoder.named_parameters():
            if name in given:
                parameter.data = given[name].to(parameter.device)  # not in place: it is the trained base's
        return decoder

    def _broadcast(self, step: int, metrics: Mapping[str, float]) -> None:
        """Publish the weights after so many steps, and what the step was."""
        decoder = self.policy.weights().decoder()
        norms = self._noisy(step, decoder)
        about = json.dumps({**metrics, "weights_digest": self._digests.of(decoder, norms)}).encode()
        publish(self._broadcasts, step, {**to_files(decoder, norms), METRICS: about})

    def _noisy(self, step: int, decoder: Decoder) -> dict[str, Tensor]:
        """Return norm weights with the noise of the step, if there is any: samplers have it, training does not."""
        section, num_steps = self._section.noise_scheduler, self._section.max_steps
        if not section.enabled:
            return {}
        sizes = {"start": section.sigma_start, "end": section.sigma_end}
        sigma = noise_sigma(step, num_stages=section.num_stages, num_steps=num_steps, **sizes)

        def noise(name: str, like: Tensor) -> Tensor:
            generator = torch.Generator().manual_seed(key("noise", self._section.seed, step, name))
            return (torch.randn(like.shape, generator=generator) * sigma).to(like.dtype)

        norms = {name: each.detach().cpu() for name, each in decoder.named_parameters() if name.endswith("norm")}
        return {name: each + noise(name, each) for name, each in norms.items()}

    def _save(self, step: int, ckpt: Mapping[str, int | None], *, is_end: bool) -> None:
        if not is_end and not (ckpt["interval"] and step % ckpt["interval"] == 0):
            return

        def write_policy(path: Path) -> None:
            decoder, base = self.policy.weights().decoder(), self._section.model
            save_adapters(decoder, path, base=base) if decoder.config.lora else save_decoder(decoder, path)
            self._tokenizer.save(path)

        writers = {"policy": write_policy, "policy_state": self.policy.write_state}
        save(
            self._run / CHECKPOINTS,
            step,
            {"level": self._section.level},
            writers,
            keep=ckpt["keep_last"],
            keep_every=ckpt["keep_interval"] or 0,
        )

    def _resume(self) -> int:
        found = load_newest(self._run / CHECKPOINTS)
        if found is None:
            return 0
        if found.values["level"] != self._section.level:
            raise CheckpointError(f"{found.path} is of level {found.values['level']}", legal=self._section.level)
        self.policy.read_state(found.path / "policy_state")
        self._say(f"step {found.step} from {found.path}")
        return found.step

    def _log(self, metrics: Mapping[str, float], wait_s: float, total_s: float) -> None:
        """Say a line of the step, and append its numbers and its times, on which no bit depends, to metrics.jsonl."""
        times = {"seconds/wait": wait_s, "seconds/train": total_s - wait_s, "idle": wait_s / total_s}
        line = {**metrics, **times, "tokens_per_s": metrics["tokens"] / max(total_s - wait_s, 1e-9)}
        append(self._run / METRICS_LOG, line)
        if metrics["step"] % self._section.logging_steps == 0 and metrics["tokens"]:
            shown = ("reward_mean", "kl", "masked", "teacher_kl", "grad_norm", "versions_apart", "tokens_per_s", "idle")
            said = ", ".join(f"{name}={line[name]:.3g}" for name in shown if name in line)
            self._say(f"step {metrics['step']:.0f}: {said}")
        if metrics.get("masked", 0.0) > TOO_MANY_MASKED:
            self._say(
                f"step {metrics['step']:.0f}: {metrics['masked']:.0%} of the tokens are masked, the policy drifts:"
                " a lower learning_rate, or a loss.kl_tau above 0"
            )


def columns_of(rows: list[dict[str, Any]], *, pad_id: int, adv_tau: float) -> Batch:
    """Return right-padded rows [samples, positions], as `rlcore.data.batch.dense_batch` builds them."""
    sequences = {
        "tokens": [torch.tensor(row["tokens"]) for row in rows],
        "loss_mask": [torch.tensor([False] * row["num_prompt"] + row["mask"]) for row in rows],
        "rollout_logprobs": [torch.tensor([0.0] * row["num_prompt"] + row["logprobs"]) for row in rows],
    }
    if "teacher" in rows[0]:
        sequences["teacher_logprobs"] = [torch.tensor([0.0] * row["num_prompt"] + row["teacher"]) for row in rows]
    batch = collate(sequences, pad_values={"tokens": pad_id})
    advantages = torch.tensor([row["advantage"] for row in rows], dtype=torch.float64) * adv_tau
    return batch.extended(
        prompt_lengths=torch.tensor([row["num_prompt"] for row in rows]),
        rewards=torch.tensor([row["reward"] for row in rows], dtype=torch.float64),
        groups=torch.tensor([row["group"] for row in rows]),
        temperatures=torch.tensor([row["temperature"] for row in rows], dtype=torch.float64),
        advantages=per_token(advantages, batch["loss_mask"]).float(),
    )


def masked_is_loss(
    section: LossSection, denominators: Denominators, policy: nn.Module, microbatch: Microbatch
) -> MicrobatchLoss:
    """Compute a microbatch's share of the loss: -r (A + teacher_tau t - kl_tau d) logprobs of tokens within the bounds.

    t is the teacher's log-probability less the policy's, d the policy's less the sampler's.
    """
    mask, sampled, advantages = (microbatch[name] for name in ("loss_mask", "rollout_logprobs", "advantages"))
    logprobs, entropy = read_tokens(microbatch["temperatures"].tolist(), policy, microbatch)
    observed = {"logprobs": logprobs, "entropy": entropy, "kl": logprobs - sampled}
    if "teacher_logprobs" in microbatch:
        observed["teacher_kl"] = logprobs - microbatch["teacher_logprobs"]
        advantages = advantages - section.teacher_tau * observed["teacher_kl"].detach()
    tokens = Tokens(logprobs, sampled, sampled, advantages, mask)
    keep = masked_is_keep(
        tokens,
        token=(section.token_mask_low, section.token_mask_high),
        geometric=(section.geo_mask_low, section.geo_mask_high),
        sequence=(section.sequence_mask_low, section.sequence_mask_high),
    )
    cap = section.sequence_clip_high if section.ratio_type == "sequence" else None
    found = masked_is(tokens, keep, proximal_coef=section.kl_tau, sequence_cap=cap)
    observed["masked"] = (mask & ~keep).float()
    shares = sample_shares(found.losses, mask, "token-mean", denominators)
    return MicrobatchLoss(shares.sum(), {name: value.detach() for name, value in observed.items()}, mask)
