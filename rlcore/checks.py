"""Checks of a step: faults that repeat themselves, so that comparing a run with itself shows nothing.

    before(step)   while the policy is still the one that sampled
    after(step)    when the step is over and its weights are synced

Each reads what the step was made of, and raises StepError or LevelError. Tests compare formulas with others, not a run.
Further checks are made where their values are: of losses and gradients that are not finite, and of ranks that
must hold equal bits, in `rlcore.trainers`; of weights that were sent, in `rlcore.weights.proven_sync`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from harness.bits.tensor_digests import tensor_digests
from rlcore.config import RunConfig
from rlcore.data.tasks import Task
from rlcore.data.trajectory import Trajectory, Turn, by_request, item_params
from rlcore.determinism import check_level
from rlcore.errors import LevelError, StepError
from rlcore.models.decoder import Decoder
from rlcore.numerics.log_softmax import token_logprobs
from rlcore.numerics.probe import check_num_threads
from rlcore.samplers.drawing import Filters, GumbelNoise, signed, states
from rlcore.seeds import key
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason, Tokenizer
from rlcore.weights.canary import different_layer, policy_logprobs
from rlcore.weights.receipts import Receipt
from rlcore.weights.source import LiveWeights, digest_of
from rlcore.weights.target import WeightTarget

if TYPE_CHECKING:
    from rlcore.train import Matched, Step, TrainState, Update

NUM_TOKENS = 16
"""Tokens of a completion that are drawn again: its first, its last, and others between them."""
NUM_AT_FIRST = 4
"""Completions that are drawn again in the first step of a process."""
DRAW_EVERY = 4
"""Steps from one in which a completion is drawn again to the next, after the first two."""
OTHER_WEIGHTS = 1e-2
"""Distance in nats from which a token's log-probability is that of another policy."""
CONTEXT = 8
"""Tokens that are shown before and after the one with the largest mismatch."""


class Checks:
    """The checks of one run."""

    def __init__(self, state: "TrainState", say: Callable[[str], None] = lambda line: None) -> None:
        """Remember what has to stay as it is; `say` is given the mismatches if `output.shows_mismatch` is set.

        Raises StepError.
        """
        self._state, self._say = state, say
        self._prompts = {prompt.id: prompt for prompt in state.task.train}
        self._num_threads: int | None = None
        self._dtype = torch.get_default_dtype()
        self._num_steps = 0
        self._reference = "" if state.reference is None else digest_of(state.reference.weights())
        check_heldout(state.task)

    def before(self, step: "Step") -> None:
        """Check that the trainer's policy is the one that sampled, to the bit. Raises LevelError at level invariant."""
        self._num_steps += 1
        is_invariant, config = self._state.level == "invariant", self._state.config
        if is_invariant:
            self._draw_again(step)
        for matched in step.matched:
            found = mismatch_of(matched.logprobs, matched.rollout_logprobs, matched.loss_mask)
            if found is None or not (is_invariant or config.output.shows_mismatch):
                continue
            text, causes = explain(self._state, step, matched, found)
            if is_invariant:
                cause = next(causes)
                raise LevelError(
                    f"{text[0]}; {cause.what}. The largest: {text[1]}",
                    legal="equal bits at level invariant",
                    remedy=cause.remedy,
                    phases=("rollout", "forward"),
                )
            self._say(f"step {step.number}: {text[0]}")
            self._say(f"  largest: {text[1]}")
            for cause in causes:
                self._say(f"  cause:   {cause.what}")
            break  # once in a step
        if is_invariant and step.number == 0:
            check_first_reference(step)

    def after(self, step: "Step") -> None:
        """Check what the step was made of, and that the process computes as its level has set it up."""
        state = self._state
        check_level(state.level)
        if state.level != "off":
            self._num_threads = check_num_threads(self._num_threads)
        check_default_dtype(self._dtype)
        check_prompts(step.requests, self._prompts)
        check_completions(step.requests, step.rollouts, step.receipt, state.tokenizer)
        check_written(step)
        check_epochs(step.samples, step.batch["included"])
        for update in step.updates:
            check_passes(update)
        if state.reference is not None and "reference" not in state.config.deployment.offload:
            check_frozen(digest_of(state.reference.weights()), self._reference)

    def _draw_again(self, step: "Step") -> None:
        """Draw tokens again by the trainer; weights in other processes are fetched for it, once in a run."""
        is_first = self._num_steps == 1
        is_due = self._num_steps == 2 or self._num_steps % DRAW_EVERY == 0
        weights = self._state.policy.weights()
        if not (is_first or (is_due and isinstance(weights, LiveWeights))):
            return
        drawn = [each for each in step.rollouts if not each.request.beams and len(each.turns) == 2]
        decoder = weights.decoder() if drawn else None
        for number in range(min(len(drawn), NUM_AT_FIRST if is_first else 1)):
            trajectory = drawn[key("drawn again", self._num_steps, number) % len(drawn)]
            assert decoder is not None
            check_drawn(decoder, trajectory, self._state.config)


# ------------------------------------------------------------------------------------------------------------ the run


def check_heldout(task: Task) -> None:
    """Check that no held-out prompt has the text of one that is trained on; raises StepError naming it."""
    train = {prompt.text for prompt in task.train}
    if known := [prompt for prompt in task.heldout if prompt.text in train]:
        raise StepError(
            f"{len(known)} of {len(task.heldout)} evaluated prompts are trained on, the first {known[0].text!r:.60}",
            legal="held-out prompts alone: a reward on what was learned says nothing of the rest",
            phases=("rollout",),
        )


def check_default_dtype(before: torch.dtype) -> None:
    """Check that torch's default type is as it was when the run began; raises LevelError."""
    if (now := torch.get_default_dtype()) != before:
        raise LevelError(
            f"torch's default type is {now}, and was {before} when the run began",
            legal=f"{before} for the whole run",
            remedy="find the library or reward function that calls torch.set_default_dtype",
            phases=("level",),
        )


# --------------------------------------------------------------------------------------------------------- the rollout


def check_prompts(requests: Sequence[SampleRequest], prompts: Mapping[str, Prompt]) -> None:
    """Check that the prompt of a request is the task's of that id, with its tokens and columns; raises StepError."""
    for request in requests:
        prompt, known = request.prompt, prompts.get(request.prompt.id)
        if known is prompt or known == prompt:
            continue
        if known is None:
            raise StepError(f"prompt {prompt.id} is not one of the task", phases=("rollout",))
        if (prompt.tokens, prompt.text) != (known.tokens, known.text):
            raise StepError(
                f"prompt {prompt.id} is read as {len(prompt.tokens)} tokens, {prompt.tokens!r:.60}",
                legal=f"{known.tokens!r:.60}, {len(known.tokens)} tokens, as the task has it",
                phases=("rollout",),
            )
        raise StepError(f"prompt {prompt.id} has the columns of another prompt", phases=("reward",))


def check_completions(
    wanted: Sequence[SampleRequest], trajectories: Sequence[Trajectory], receipt: Receipt | None, tokenizer: Tokenizer
) -> None:
    """Check that each request has its own completion, in order, of the weights of the last receipt.

    A turn ends once, for the reason it gives, within its limit, and its text is that of its tokens. Raises StepError
    naming the sample.
    """
    rollouts = by_request(trajectories)
    if len(rollouts) != len(wanted):
        raise StepError(f"{len(rollouts)} rollouts of {len(wanted)} requests", phases=("rollout",))
    for request, found in zip(wanted, rollouts, strict=True):
        name = request.name
        if (found[0].request.key, found[0].request.prompt.id) != (request.key, request.prompt.id):
            raise StepError(f"completion order: expected {name}, got {found[0].name}", phases=("rollout",))
        for trajectory in found:
            for weights in trajectory.weights_digests.items():
                if receipt is not None and weights != (receipt.policy_version, receipt.weights_digest):
                    raise StepError(
                        f"{name} was drawn with weights {weights[1]}, version {weights[0]}",
                        legal=f"{receipt.weights_digest}, of the last sync, version {receipt.policy_version}",
                        phases=("rollout",),
                    )
            for turn in trajectory.assistant_turns:
                is_item = trajectory.is_branch and turn is trajectory.turns[-1]
                params = item_params(request) if is_item else request.params
                if wrong := _wrong_end(turn, trajectory.tokens_of(turn), params, tokenizer):
                    raise StepError(f"{name} {wrong}", phases=("rollout",))


def _wrong_end(turn: Turn, tokens: Sequence[int], params: SamplingParams, tokenizer: Tokenizer) -> str:
    """Describe the fault in the end or the text of an assistant turn; empty if there is none."""
    ends, last, limit = {tokenizer.eos_id, *params.stop_ids}, tokens[-1], params.max_tokens
    if not ends.isdisjoint(tokens[:-1]):
        return f"continues after token {next(at for at, token in enumerate(tokens) if token in ends)}, which ends it"
    if (text := tokenizer.decode(tokens)) != turn.text:
        return f"says {turn.text!r:.60}, where its tokens say {text!r:.60}"
    is_stopped = any(stop in text for stop in params.stop_strings)
    is_right = {
        StopReason.EOS: last == tokenizer.eos_id,
        StopReason.STOP_ID: last in params.stop_ids,
        StopReason.STOP_STRING: is_stopped,
        StopReason.LENGTH: len(tokens) == limit and last not in ends and not is_stopped,
        None: False,
    }[turn.stop_reason]
    if is_right and len(tokens) <= limit:
        return ""
    return f"has {len(tokens)} tokens of at most {limit}, the last {last}, and ended by {turn.stop_reason}"


@torch.no_grad()
def check_drawn(policy: Decoder, trajectory: Trajectory, config: RunConfig) -> None:
    """Check that some tokens are the largest of the trainer's logits over the temperature, plus the noise of their key.

    Temperature and filters are those of the configuration. Raises LevelError naming a token.
    """
    section, begin = config.sampling, trajectory.num_prompt_tokens
    count, device = len(trajectory.tokens) - begin, policy.embedding.device
    chosen = sorted({round(place * (count - 1) / (NUM_TOKENS - 1)) for place in range(NUM_TOKENS)})
    tokens, offsets = torch.tensor(trajectory.tokens, device=device), torch.tensor(chosen, device=device)
    logits = policy.logits(policy.hidden(tokens[None, :-1])[0, begin - 1 + offsets])
    temperature = section.temperature
    said = torch.tensor(trajectory.completion_logprobs, dtype=torch.float32)[chosen]
    found = tokens[begin + offsets]
    if not torch.allclose(said, token_logprobs(logits / temperature, found).cpu(), atol=OTHER_WEIGHTS, rtol=0.0):
        return  # of other weights: the comparison of log-probabilities names the parameter
    scores = logits / temperature if temperature != 1.0 else logits
    params = SamplingParams(
        count, temperature=temperature, top_k=section.top_k, top_p=section.top_p, min_p=section.min_p
    )
    if (filters := Filters.of([params], logits.shape[1], device)) is not None:
        rows = torch.cat([filters.allowed(row[None]) for row in scores])
        scores = scores.double().masked_fill(~rows, -torch.inf)
    seeds = torch.full_like(offsets, signed(trajectory.request.key))
    expected = (GumbelNoise.of(logits.shape[1], device)(states(seeds, offsets)) + scores).argmax(-1).tolist()
    for offset, token, other in zip(chosen, found.tolist(), expected, strict=True):
        if token != other:
            raise LevelError(
                f"token {offset} of {trajectory.name} is {token}: its key and position draw {other} from the"
                f" trainer's logits at temperature {temperature:g}",
                legal="the largest of logit / sampling.temperature + noise, among tokens that the filters leave",
                remedy="check the sampler's temperature, filters and rows",
                phases=("rollout",),
            )


# -------------------------------------------------------------------------------------------------------- the learning


def check_written(step: "Step") -> None:
    """Check that nothing of the batch was written while it was learned from; raises StepError naming the entry."""
    made_in = {
        **dict.fromkeys(("rewards", "included", "greedy_rewards"), "reward"),
        **dict.fromkeys(("old_logprobs", "ref_logprobs", "values"), "reference"),
        **dict.fromkeys(("advantages", "returns"), "advantage"),
    }
    for name, entry in step.batch.items():
        if entry._version != step.num_writes[name]:
            raise StepError(
                f"{name} of the batch were written while it was learned from",
                phases=(made_in.get(name, "rollout"), "loss"),
            )


def check_epochs(samples: Sequence[int], included: Tensor) -> None:
    """Check that an epoch has every sample that has a reward once, and no other; raises StepError."""
    learned = included.nonzero().flatten().tolist()
    for begin in range(0, len(samples), len(learned)):
        counts = Counter(samples[begin : begin + len(learned)])
        if wrong := [sample for sample in {*counts, *learned} if counts[sample] != (sample in learned)]:
            raise StepError(
                f"sample {min(wrong)} is in an epoch {counts[min(wrong)]} times, one of {len(wrong)} that are not in it"
                " once",
                legal=f"each of the {len(learned)} samples with a reward once, and no other",
                phases=("forward", "loss"),
            )


def check_passes(update: "Update") -> None:
    """Check that the passes of an update read every token that its losses are divided by, once; raises StepError."""
    num_tokens = sum(int(each.loss_mask.sum()) for each in update.losses)
    num_samples = sum(len(each.loss_mask) for each in update.losses)
    expected = update.denominators.num_tokens, update.denominators.num_samples
    if (num_tokens, num_samples) != expected:
        raise StepError(
            f"an update of the {update.trainer} has read {num_samples} samples and {num_tokens} tokens",
            legal=f"{expected[1]} samples and {expected[0]} tokens, by which its losses were divided",
            phases=("forward", "loss"),
        )


def check_frozen(digest: str, before: str) -> None:
    """Check that the reference policy has the bits that it began with; raises StepError."""
    if digest != before:
        raise StepError(
            "the weights of the reference policy were written since the run began",
            remedy="give it a deep copy of the policy, which no optimizer moves",
            phases=("reference",),
        )


def check_first_reference(step: "Step") -> None:
    """Check that the reference, which is the policy in step 0, gives each token what the sampler says of it."""
    if "ref_logprobs" not in step.batch:
        return
    found = mismatch_of(*(step.batch[name] for name in ("ref_logprobs", "rollout_logprobs", "loss_mask")))
    if found is not None:
        raise LevelError(
            f"the reference's log-probability is not the sampler's for {found.num_different} of {found.num_tokens}"
            f" tokens, though the reference is the policy in step 0. The largest: position {found.column} of"
            f" {step.rollouts[found.row].name}: {found.trainer!r} of the reference, {found.sampler!r} in the sampler",
            legal="equal bits at level invariant",
            remedy="check when the reference was copied, its temperature, and the order of its passes",
            phases=("reference", "rollout"),
        )


# ----------------------------------------------------------------------------------- mismatch of trainer and sampler


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Tokens whose log-probability the trainer and the sampler disagree on."""

    num_different: int
    num_tokens: int
    largest: float
    """Largest difference in nats; inf if a value is NaN."""
    row: int
    """Row of the token with the largest difference, the first of several."""
    column: int
    trainer: float
    sampler: float


def mismatch_of(trainer: Tensor, sampler: Tensor, mask: Tensor) -> Mismatch | None:
    """Compare log-probabilities [samples, positions] where the mask is true; None if all bits are equal."""
    differs = mask & (trainer != sampler)
    if not bool(differs.any()):
        return None
    distances = (trainer.double() - sampler.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    distances = torch.where(differs, distances, -1.0)
    row, column = divmod(int(distances.argmax()), mask.shape[1])
    return Mismatch(
        num_different=int(differs.sum()),
        num_tokens=int(mask.sum()),
        largest=float(distances[row, column]),
        row=row,
        column=column,
        trainer=float(trainer[row, column]),
        sampler=float(sampler[row, column]),
    )


@dataclass(frozen=True, slots=True)
class Cause:
    """What differs first, and what to do."""

    what: str
    remedy: str


DECODING = Cause(
    "weights are equal, and the sampler gives the trainer's log-probabilities if it reads the sequence again:"
    " decoding differs from reading",
    "check the sampler's cache, its preemption and its draws; --set sampler.name=torch decodes without vLLM",
)


def explain(
    state: "TrainState", step: "Step", matched: "Matched", found: Mismatch
) -> tuple[tuple[str, str], Iterator[Cause]]:
    """Describe how far a mismatch goes and its largest token, and search for its causes, the deepest first."""
    trajectory, position = step.rollouts[matched.rows[found.row]], matched.first + found.column
    tokens, mask = trajectory.tokens, matched.loss_mask[found.row]
    parts = tokens[max(0, position - CONTEXT) : position], tokens[position : position + 1], tokens[position + 1 :]
    left, token, right = (state.tokenizer.decode(part[:CONTEXT]) for part in parts)
    extent = (
        f"the trainer's log-probability is not the sampler's for {found.num_different} of {found.num_tokens}"
        f" tokens of a pass, by at most {found.largest:.3g} nats"
    )
    largest = (
        f"position {position} of {trajectory.name}, {f'{left}«{token}»{right}'!r}:"
        f" {found.trainer!r} in the trainer, {found.sampler!r} in the sampler"
    )

    def searched() -> Iterator[Cause]:
        try:
            yield from causes(
                state.policy.weights().decoder(),
                state.sampler.weight_target,
                tokens,
                [matched.first + column for column in mask.nonzero().flatten().tolist()],
                matched.logprobs[found.row][mask].detach(),
                temperature=trajectory.request.params.temperature or 1.0,
            )
        except Exception as error:  # the mismatch is what matters
            yield Cause(
                f"the search for its cause failed: {getattr(error, 'what', error)}", getattr(error, "remedy", "")
            )

    return (extent, largest), searched()


@torch.no_grad()
def causes(
    policy: Decoder,
    target: WeightTarget,
    tokens: Sequence[int],
    positions: Sequence[int],
    logprobs: Tensor,
    *,
    temperature: float,
) -> Iterator[Cause]:
    """Yield what differs on one sequence, the deepest cause first; something is always yielded.

    `logprobs` are the trainer's at these positions; the policy and the target are as they were.

        weights of the sampler, by digest ─▶ the trainer's pass of the sequence alone ─▶ the sampler's, layer by layer
    """
    source = {name: parameter.detach() for name, parameter in policy.named_parameters(remove_duplicate=False)}
    names = [name for name in target.describe().parameters if name in source]
    expected, held = tensor_digests({name: source[name] for name in names}), target.digests(names)
    if wrong := [name for name in names if held.get(name) != expected[name]]:
        yield Cause(
            f"{wrong[0]} of the sampler is not the policy's ({len(wrong)} of {len(names)} parameters are not)",
            "repair the sync: its receipt finds this before anything is sampled",
        )
        return
    is_found, sequence = False, torch.tensor(tokens)
    own = sequence.to(policy.embedding.device)
    logits = policy.logits(policy.hidden(own[None, :-1]))[0] / temperature
    alone = token_logprobs(logits, own[1:])[[position - 1 for position in positions]]
    if num_different := int((alone != logprobs).sum()):
        is_found = True
        yield Cause(
            f"the trainer's own pass depends on its batch: {num_different} of {len(positions)} tokens differ if the"
            " sequence is read alone",
            "check this machine's operations: rlharness doctor --numerics",
        )
    given, taken = policy_logprobs(policy, sequence), target.canary(sequence)
    if num_different := int((given != taken.cpu()).sum()):
        is_found = True
        yield Cause(
            f"weights are equal, and {num_different} of {len(given)} tokens differ if the sampler reads the sequence"
            f" again: {different_layer(policy, target, sequence)}",
            "compare this layer's operations in both: kernels, attention, order of additions, converted weights",
        )
    if not is_found:
        yield DECODING
