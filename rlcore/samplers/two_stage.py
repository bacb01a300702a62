"""Two-stage rollouts on one page: a reasoning is drawn until a stop string, then items are searched after it.

    request ─sample─▶ reasoning ─┬─ ended by its stop string ─▶ + forced tokens ─beam search─▶ reasoning, items
                                 └─ by end of sequence, stop id or length ──────────────────▶ reasoning alone

Any sampler serves that answers `next_tokens` (`rlcore.samplers.next_tokens`). `rlcore/TWO_STAGE.md` specifies each
corner case.
"""

from collections.abc import Sequence
from dataclasses import replace

from rlcore.data.trajectory import Item, Trajectory, branch, item_params
from rlcore.samplers.base import Progress
from rlcore.samplers.beam_search import Beam, beam_search
from rlcore.samplers.next_tokens import NextToken, NextTokenRequest, NextTokenSampler
from rlcore.samplers.stopping import reason
from rlcore.samplers.two_stage_checks import check_answers, check_beam_requests, check_same_weights
from rlcore.types import SampleRequest, StopReason, Tokenizer


def sample_two_stage(
    sampler: NextTokenSampler,
    tokenizer: Tokenizer,
    requests: Sequence[SampleRequest],
    *,
    progress: Progress | None = None,
) -> list[list[Trajectory]]:
    """Return for each request, in their order, its reasoning and the items found after it, the best first.

    All requests have the same `beams`. `progress` counts reasonings, and cancels as in `Sampler.sample`. Raises
    InvalidValueError for a request that cannot be done, before anything is drawn, StepError for an answer of the
    sampler that breaks its contract, and WeightSyncError if its weights change between the stages.
    """
    if not requests:
        return []
    beams = check_beam_requests(sampler, tokenizer, requests)
    drawn = sampler.sample([replace(request, beams=None) for request in requests], progress=progress)
    reasonings = [replace(each, request=request) for each, request in zip(drawn, requests, strict=True)]
    numbers = [at for at, each in enumerate(reasonings) if each.stop_reason is StopReason.STOP_STRING]
    contexts = [(*reasonings[at].tokens, *beams.forced) for at in numbers]
    temperatures = [requests[at].params.temperature for at in numbers]

    def expand(running: Sequence[tuple[int, Beam]]) -> list[list[NextToken]]:
        asked = [
            NextTokenRequest(contexts[number], beam.tokens, beams.num_beams, temperatures[number])
            for number, beam in running
        ]
        answers = sampler.next_tokens(asked)
        check_answers(asked, answers, tokenizer.vocab_size)
        return answers

    found = beam_search(len(contexts), beams, {tokenizer.eos_id, *beams.stop_ids}, expand)
    check_same_weights(sampler, reasonings)
    forced_text = tokenizer.decode(beams.forced)
    rollouts = [[each] for each in reasonings]
    for at, own in zip(numbers, found, strict=True):
        items = [_item(beam, requests[at], tokenizer) for beam in own]
        rollouts[at] += [branch(reasonings[at], item, beams, forced_text=forced_text) for item in items]
    return rollouts


def _item(beam: Beam, request: SampleRequest, tokenizer: Tokenizer) -> Item:
    why = reason(beam.tokens, item_params(request), tokenizer.eos_id, by_text=False)
    return Item(beam.tokens, beam.logprobs, tokenizer.decode(beam.tokens), why)
