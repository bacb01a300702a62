"""A sampler whose reasonings and next tokens are written down: corner cases of two-stage rollouts, without a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rlcore.data.trajectory import Trajectory, build_single_turn
from rlcore.models.tokenizer import CharacterTokenizer
from rlcore.samplers.base import NextToken, NextTokenRequest
from rlcore.samplers.local_target import LocalTarget
from rlcore.seeds import completion_key
from rlcore.types import BeamParams, Prompt, SampleRequest, SamplingParams, StopReason
from rlcore.weights.target import WeightTarget
from tests.support.samplers import decoder_of

TOKENIZER = CharacterTokenizer("abcdefgh;:")
EOS = TOKENIZER.eos_id
PARAMS = SamplingParams(max_tokens=4, stop_strings=(";",))
BEAMS = BeamParams(num_beams=3, max_tokens=2, forced=tuple(TOKENIZER.encode(":")))
DIGEST = "weights 7"


def ids(text: str) -> tuple[int, ...]:
    """Encode; "$" is the end of sequence."""
    return tuple(EOS if character == "$" else TOKENIZER.encode(character)[0] for character in text)


def request_of(
    text: str = "ab", sample_index: int = 0, *, params: SamplingParams = PARAMS, beams: BeamParams | None = BEAMS
) -> SampleRequest:
    """A reasoning that is wanted, and items after it."""
    key = completion_key(seed=1, step=0, prompt_id=text, sample_index=sample_index)
    return SampleRequest(Prompt(text, text, ids(text)), sample_index, key, params, beams)


@dataclass
class ScriptedSampler:
    """Answers what its script says."""

    reasonings: Mapping[str, Sequence[str]]
    """Of each prompt's text, by sample index; what ends them follows from their last token."""
    next_of: Callable[[NextTokenRequest], list[NextToken]] = lambda _: []
    policy_version: int = 7
    weights_digest: str = DIGEST
    max_length: int = 64
    num_drawn: int = 0
    asked: list[NextTokenRequest] = field(default_factory=list)

    @property
    def weight_target(self) -> WeightTarget:
        """Target of a decoder that draws nothing here."""
        target = LocalTarget(decoder_of())
        target.policy_version, target.weights_digest = self.policy_version, self.weights_digest
        return target

    def sample(self, requests: Sequence[SampleRequest]) -> list[Trajectory]:
        """As `Sampler.sample`; token t of a reasoning has log-probability -(t + 1) / 8."""
        assert all(request.beams is None for request in requests), "a plain sampler knows nothing of beams"
        drawn = []
        for request in requests:
            self.num_drawn += 1
            text = self.reasonings[request.prompt.text][request.sample_index]
            tokens = ids(text)
            ends = {ids("$")[0]: StopReason.EOS, **dict.fromkeys(request.params.stop_ids, StopReason.STOP_ID)}
            by_text = StopReason.STOP_STRING if text.endswith(";") else StopReason.LENGTH
            drawn.append(
                build_single_turn(
                    request,
                    tokens,
                    [-(at + 1) / 8 for at in range(len(tokens))],
                    text=TOKENIZER.decode(tokens),
                    stop_reason=ends.get(tokens[-1], by_text),
                    policy_version=self.policy_version,
                    weights_digest=self.weights_digest,
                )
            )
        return drawn

    def next_tokens(self, requests: Sequence[NextTokenRequest]) -> list[list[NextToken]]:
        """As `NextTokenSampler.next_tokens`."""
        self.asked += requests
        return [self.next_of(request)[: request.num_tokens] for request in requests]


def alphabetical(letters: str) -> Callable[[NextTokenRequest], list[NextToken]]:
    """These tokens after any sequence, the first most probable: -1, -2, ..."""
    return lambda _: [NextToken(token, -float(at)) for at, token in enumerate(ids(letters), start=1)]
