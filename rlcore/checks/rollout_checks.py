"""Invariants of a rollout: weights, generators, requests, trajectories, batch.

    weights ─▶ requests ─▶ trajectories ─▶ batch

These are faults that repeat themselves: a run that has one is reproducible, so that comparing it with itself shows
nothing. A check that fails is a bug of rlcore, or of what was put into it; the step is not learned from.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch

from rlcore.checks.branch_checks import check_branches, params_of
from rlcore.data.batch import Batch
from rlcore.data.scoring import Scores
from rlcore.data.trajectory import Trajectory, Turn, by_request
from rlcore.errors import LevelError, StepError
from rlcore.keys import completion_key
from rlcore.types import SampleRequest, SamplingParams, StopReason, Tokenizer
from rlcore.weights.receipts import Receipt
from rlcore.weights.source import WeightSource, digest_of

_CLASSIFIED = ("rewards", "included")
_BY_TOKEN = {"tokens": "tokens", "loss_mask": "loss masks", "policy_versions": "policy versions"}
"""Entries of a batch that are those of its trajectories, with their names in messages."""


def check_sent(policy: WeightSource, receipt: Receipt | None) -> None:
    """A step begins with the policy that was sent to the sampler, to the bit; raises StepError."""
    if receipt is None:
        return
    found = digest_of(policy)
    if found != receipt.weights_digest:
        raise StepError(
            f"the policy has weights {found}",
            legal=f"{receipt.weights_digest}, of the last sync, version {receipt.policy_version}",
            remedy="check which model was sent, and what has written the policy since",
            phases=("sync", "optimizer"),
        )


@contextmanager
def check_undrawn(*phases: str) -> Iterator[None]:
    """Check that nothing draws from the generators of torch, its GPUs and Python inside: no checkpoint has them.

    Raises LevelError.
    """
    before = _generators()
    yield
    if moved := [name for name, state in _generators().items() if state != before.get(name, state)]:
        raise LevelError(
            f"something has drawn from the generator of {' and '.join(moved)}",
            legal="draws by key (rlcore.keys), which no other draw affects, and which a resumed run repeats",
            phases=phases,
        )


def _generators() -> dict[str, object]:
    states: dict[str, object] = {"torch": torch.get_rng_state().numpy().tobytes(), "Python": random.getstate()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states |= {
            f"GPU {index}": generator.get_state().numpy().tobytes()
            for index, generator in enumerate(torch.cuda.default_generators)
        }
    return states


def check_keys(wanted: Sequence[SampleRequest], *, seed: int, step: int) -> None:
    """Check that each key is that of the seed, the step, the prompt and the sample's number; raises StepError.

    Anything else in it (a position in the batch, evaluations, a counter) is another key after a resume, or in another
    order.
    """
    for request in wanted:
        own = completion_key(seed=seed, step=step, prompt_id=request.prompt.id, sample_index=request.sample_index)
        if request.key != own:
            raise StepError(
                f"{_named(request)} has key {request.key:016x} in step {step}",
                legal=f"{own:016x}, of seed {seed}, the step, the prompt and the sample's number alone",
                phases=("rollout",),
            )


def check_heldout(trajectories: Sequence[Trajectory], train: Collection[str]) -> None:
    """Check that no evaluated prompt has the text of one that is trained on; raises StepError naming it."""
    if known := [each.request.prompt for each in trajectories if each.request.prompt.text in train]:
        raise StepError(
            f"{len(known)} of {len(trajectories)} evaluated prompts are trained on, the first {known[0].text!r:.60}",
            legal="held-out prompts alone: a reward on what was learned says nothing of the rest",
            remedy="evaluate task.heldout",
            phases=("rollout",),
        )


def check_requests(wanted: Sequence[SampleRequest], drawn_before: frozenset[int]) -> frozenset[int]:
    """Each completion of a step has noise of its own, and none of the step before; gives the keys of this one.

    Raises StepError.
    """
    keys = Counter(request.key for request in wanted)
    if shared := [request for request in wanted if keys[request.key] > 1]:
        one, other = shared[0], next(each for each in shared[1:] if each.key == shared[0].key)
        raise StepError(f"{_named(one)} and {_named(other)} share a key: their noise is the same", phases=("rollout",))
    if again := [request for request in wanted if request.key in drawn_before]:
        raise StepError(f"{_named(again[0])} has a key of the step before", phases=("rollout",))
    return frozenset(keys)


def check_trajectories(
    wanted: Sequence[SampleRequest],
    trajectories: Sequence[Trajectory],
    receipt: Receipt | None,
    tokenizer: Tokenizer,
) -> None:
    """Check that each request has its own trajectory, in the order of requests, of the weights of the last receipt.

    A request with beams has a reasoning, and the items that branch off it.

    Every sampled token has the version of these weights. Every assistant turn ends once, for the reason it gives, and
    its text is that of its tokens. Raises StepError naming the sample.
    """
    rollouts = by_request(trajectories)
    if len(rollouts) != len(wanted):
        check_branches(trajectories)
        raise StepError(f"{len(rollouts)} rollouts of {len(wanted)} requests", phases=("rollout",))
    for request, (first, *_) in zip(wanted, rollouts, strict=True):
        if (first.request.key, first.request.prompt.id) != (request.key, request.prompt.id):
            raise StepError(f"completion order: expected {_named(request)}, got {first.name}", phases=("rollout",))
    check_branches(trajectories)
    pairs = [(request, each) for request, found in zip(wanted, rollouts, strict=True) for each in found]
    for request, trajectory in pairs:
        if receipt is not None:
            _check_weights(trajectory, receipt)
        for turn in trajectory.assistant_turns:
            tokens, params = trajectory.tokens_of(turn), params_of(trajectory, turn)
            most = params_of(trajectory, turn, request).max_tokens
            if len(tokens) > most:
                raise StepError(
                    f"{_named(request)} has {len(tokens)} tokens from token {turn.begin} on",
                    legal=f"1 to {most} a turn",
                    phases=("rollout",),
                )
            if wrong := _wrong_end(turn, tokens, params, tokenizer.eos_id):
                raise StepError(f"{_named(request)} {wrong}", phases=("rollout",))
            if (text := tokenizer.decode(tokens)) != turn.text:
                raise StepError(
                    f"{_named(request)} says {turn.text!r:.60}",
                    legal=f"{text!r:.60}, the text of its tokens",
                    remedy="reward the text of the tokens that are learned: do not shorten the text alone",
                    phases=("rollout",),
                )


def _check_weights(trajectory: Trajectory, receipt: Receipt) -> None:
    for version, digest in trajectory.weights_digests.items():
        if (version, digest) != (receipt.policy_version, receipt.weights_digest):
            position = trajectory.policy_versions.index(version)
            raise StepError(
                f"{trajectory.name} was drawn with weights {digest}, version {version}, from token {position} on",
                legal=f"{receipt.weights_digest}, of the last sync, version {receipt.policy_version}",
                phases=("rollout",),
            )


def _wrong_end(turn: Turn, tokens: Sequence[int], params: SamplingParams, eos_id: int) -> str:
    """Describe the fault in the end of an assistant turn; empty if there is none."""
    ends = {eos_id, *params.stop_ids}
    if not ends.isdisjoint(tokens[:-1]):
        return f"continues after token {next(at for at, token in enumerate(tokens) if token in ends)}, which ends it"
    match turn.stop_reason:
        case StopReason.EOS:
            is_right = tokens[-1] == eos_id
        case StopReason.STOP_ID:
            is_right = tokens[-1] in params.stop_ids
        case StopReason.STOP_STRING:
            is_right = bool(params.stop_strings)
        case StopReason.LENGTH:
            is_right = len(tokens) == params.max_tokens and tokens[-1] not in ends
        case None:
            is_right = False
    told = (
        f"has {len(tokens)} tokens of at most {params.max_tokens}, the last {tokens[-1]}, and ended by"
        f" {turn.stop_reason}"
    )
    return "" if is_right else told


def check_batch(batch: Batch, trajectories: Sequence[Trajectory], scores: Scores) -> None:
    """Check that a dense batch holds each trajectory token by token, that groups are prompts, and rewards the scores.

    Raises StepError naming the sample.
    """
    mask = batch["loss_mask"]
    for sample, (found, trajectory) in enumerate(zip(mask.sum(-1).tolist(), trajectories, strict=True)):
        if found != len(trajectory.loss_tokens):
            raise StepError(
                f"{found} tokens of sample {sample} are learned, and {len(trajectory.loss_tokens)} were drawn",
                remedy="find the end of a completion by its length: its end token may be sampled too",
                phases=("rollout",),
            )
    lengths = batch["lengths"].tolist()
    for name, what in _BY_TOKEN.items():
        rows = zip(batch[name].tolist(), lengths, trajectories, strict=True)
        for sample, (row, length, trajectory) in enumerate(rows):
            if tuple(row[:length]) != getattr(trajectory, name):
                raise StepError(f"{what} of sample {sample} are not those that were drawn", phases=("rollout",))
    keys = [each.group for each in trajectories]
    pairs = set(zip(batch["groups"].tolist(), keys, strict=True))
    if not len(pairs) == len({group for group, _ in pairs}) == len(set(keys)):
        raise StepError(
            f"{len({group for group, _ in pairs})} groups of {len(set(keys))} prompts or reasonings",
            legal="a group for each prompt, of all its completions, and for each reasoning, of all its items",
            phases=("rollout", "advantage"),
        )
    told = [
        reward if counts else None for reward, counts in zip(*(batch[n].tolist() for n in _CLASSIFIED), strict=True)
    ]
    if told != scores.rewards:
        sample = next(at for at, (one, other) in enumerate(zip(told, scores.rewards, strict=True)) if one != other)
        raise StepError(
            f"sample {sample} has reward {told[sample]} in the batch, and was given {scores.rewards[sample]}",
            phases=("reward",),
        )


def _named(request: SampleRequest) -> str:
    return f"sample {request.sample_index} of prompt {request.prompt.id}"
