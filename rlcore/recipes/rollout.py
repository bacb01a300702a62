"""From the number of a step to a batch: its prompts, their completions, their rewards, in canonical order.

Canonical is by prompt as drawn, then by number. Completions arrive in any order, and are put there before anything
reads them.
"""

from collections.abc import Callable, Sequence

from rlcore.config import RunConfig, RuntimeSection
from rlcore.data.batch import Batch, dense_batch
from rlcore.data.scoring import Scores, score_branches
from rlcore.data.trajectory import Trajectory
from rlcore.keys import completion_key, epoch_items, permutation
from rlcore.numerics.probe import num_threads
from rlcore.observability.events import RequestsBuilt, RolloutBatched, SamplingBegins, TrajectoriesSampled
from rlcore.recipes.idle_models import rest
from rlcore.samplers.base import Sampler
from rlcore.samplers.two_stage import check_can_search, sample_two_stage
from rlcore.train_state import TrainState
from rlcore.types import BeamParams, Prompt, SampleRequest, SamplingParams, Tokenizer


def rollout(state: TrainState, step: int) -> tuple[list[Trajectory], Scores, Batch]:
    """Sample the completions of a step, score them, and build their dense batch."""
    config, observers = state.config, state.observers
    with observers.stage("rollout"):
        observers.emit(SamplingBegins(state.policy.weights(), state.receipt, state.sampler.weight_target))
        rest(state, state.policy, state.critic, state.reference)
        wanted = requests(state, prompts_of(state, step), step)
        observers.emit(RequestsBuilt(wanted))
        trajectories = collect_all(state, wanted)
        observers.emit(TrajectoriesSampled(wanted, trajectories, state.receipt, state.tokenizer))
    with observers.stage("reward"):
        control = (config.seed, step) if config.task.shuffles_rewards else None
        scores = score_branches(state.task.rewards, trajectories, step=step, control=control)
    batch = dense_batch(trajectories, scores, pad_id=state.tokenizer.pad_id).to(config.model.device)
    observers.emit(RolloutBatched(batch, trajectories, scores))
    return trajectories, scores, batch


def prompts_of(state: TrainState, step: int) -> list[Prompt]:
    """Return the prompts of a step: a keyed order, every prompt once per epoch."""
    count = state.config.training.prompts_per_step
    prompts = state.task.train
    return [prompts[i] for i in epoch_items(step * count, count, len(prompts), state.config.seed, "prompts")]


def requests(state: TrainState, prompts: Sequence[Prompt], step: int) -> list[SampleRequest]:
    """Build `group_size` requests per prompt; a prompt that comes twice, at the end of an epoch, counts on."""
    config, params = state.config, sampling_params(state)
    beams = beam_params(config, state.tokenizer)
    seen: dict[str, int] = {}
    wanted = []
    for prompt in prompts:
        first = seen.get(prompt.id, 0)
        seen[prompt.id] = first + config.training.group_size
        for index in range(first, seen[prompt.id]):
            key = completion_key(seed=config.seed, step=step, prompt_id=prompt.id, sample_index=index)
            wanted.append(SampleRequest(prompt, index, key, params, beams))
    return wanted


def sampling_params(state: TrainState) -> SamplingParams:
    """Return the configured parameters, with the tokenizer's other stop tokens."""
    section = state.config.sampling
    return SamplingParams(
        max_tokens=section.max_tokens,
        temperature=section.temperature,
        top_k=section.top_k,
        top_p=section.top_p,
        min_p=section.min_p,
        stop_ids=state.tokenizer.stop_ids,
        stop_strings=section.stop_strings,
    )


def beam_params(config: RunConfig, tokenizer: Tokenizer) -> BeamParams | None:
    """Return the configured search for items; None if completions have none.

    Raises InvalidValueError for a forced text that the tokenizer cannot encode.
    """
    section = config.sampling.two_stage
    if section is None:
        return None
    return BeamParams(
        num_beams=section.num_beams,
        max_tokens=section.max_item_tokens,
        forced=tuple(tokenizer.encode(section.forced_text)),
        stop_ids=tokenizer.stop_ids,
    )


def collect(sampler: Sampler, wanted: Sequence[SampleRequest], runtime: RuntimeSection) -> list[Trajectory]:
    """Sample the trajectories of requests, in their order, whatever the order in which the sampler is given them."""
    return [
        trajectory for (trajectory,) in _in_order(lambda few: [[each] for each in sampler.sample(few)], wanted, runtime)
    ]


def collect_all(state: TrainState, wanted: Sequence[SampleRequest]) -> list[Trajectory]:
    """Sample as `collect`; a request with beams has several trajectories: a reasoning, then its items."""
    if not any(request.beams for request in wanted):
        return collect(state.sampler, wanted, state.config.runtime)
    sampler = check_can_search(state.sampler)
    rollouts = _in_order(lambda few: sample_two_stage(sampler, state.tokenizer, few), wanted, state.config.runtime)
    return [trajectory for found in rollouts for trajectory in found]


def _in_order(
    sample: Callable[[Sequence[SampleRequest]], list[list[Trajectory]]],
    wanted: Sequence[SampleRequest],
    runtime: RuntimeSection,
) -> list[list[Trajectory]]:
    """Sample requests as they arrive, and return what each has, in the order of `wanted`."""
    order = list(range(len(wanted)))
    if runtime.arrival_seed:
        order = permutation(len(wanted), "arrival", runtime.arrival_seed)
    with num_threads(runtime.sampling_threads, "rollout"):
        arrived = sample([wanted[index] for index in order])
    found = dict(zip(order, arrived, strict=True))
    return [found[index] for index in range(len(wanted))]
