"""A rollout of four completions of two prompts, built by hand."""

from collections.abc import Sequence

from rlcore.batching.batch import Batch
from rlcore.batching.rollout_batch import dense_batch
from rlcore.environments.trajectory import Trajectory, build_single_turn
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.rewards.score import Scores
from rlcore.types import Prompt, SampleRequest, SamplingParams, StopReason
from rlcore.weights.receipts import Receipt

TOKENIZER = CharacterTokenizer("abcdefghij")
EOS = TOKENIZER.eos_id
RECEIPT = Receipt(3, "digest", {}, (), None, (), 0.0, (), 0, 0.0)
REWARDS: list[float | None] = [1.0, 0.5, None, 0.25]
LENGTHS = (3, 1, 2, 4)


def request(prompt: str, index: int, key: int) -> SampleRequest:
    return SampleRequest(Prompt(prompt, prompt, (5, 6)), index, key, SamplingParams(max_tokens=4))


WANTED = [request("p", 0, 10), request("p", 1, 11), request("q", 0, 12), request("q", 1, 13)]


def drawn(wanted: SampleRequest, tokens: Sequence[int], reason: StopReason, text: str) -> Trajectory:
    logprobs = [-1.0] * len(tokens)
    return build_single_turn(
        wanted, tokens, logprobs, text=text, stop_reason=reason, policy_version=3, weights_digest="digest"
    )


def completion(wanted: SampleRequest, length: int) -> Trajectory:
    tokens = (*range(7, 6 + length), EOS)
    return drawn(wanted, tokens, StopReason.EOS, TOKENIZER.decode(tokens))


TRAJECTORIES = [completion(wanted, length) for wanted, length in zip(WANTED, LENGTHS, strict=True)]
SCORES = Scores(REWARDS, {})


def batch_of() -> Batch:
    return dense_batch(TRAJECTORIES, SCORES, pad_id=EOS)
