"""What a run is going to do, in lines for its terminal: pure.

A user reads these before anything is computed, so that no surprise costs a checkpoint or an hour.
"""

from collections.abc import Iterator

from rlcore.config import DeploymentSection, RunConfig


def announcement(config: RunConfig, *, level: str, num_parameters: int) -> str:
    """Return one line each for the model, the warm start and the training of a run."""
    lines = (
        ("model", _model(config, num_parameters)),
        ("warm start", _warm_start(config)),
        ("training", ", ".join(_training(config, level))),
        *_deployment(config.deployment),
    )
    return "\n".join(f"{name + ':':<12}{text}" for name, text in lines)


def _model(config: RunConfig, num_parameters: int) -> str:
    section = config.model
    drawn = f"a new {section.family} model, weights drawn from seed {config.seed}"
    source = f"the checkpoint {section.path}" if section.path else drawn
    return f"{source}, {num_parameters:,} parameters, {section.dtype} on {section.device}"


def _warm_start(config: RunConfig) -> str:
    section = config.warm_start
    if config.output.resume:
        return "none, since the run is resumed"
    if not section.num_steps:
        return "none; warm_start.num_steps=N asks for one" if config.model.path else "none"
    steps = f"{_count(section.num_steps, 'supervised step')} on the column `answer`"
    batch = f"{_count(section.batch_size, 'prompt')} each, learning rate {section.learning_rate:g}"
    if section.target_reward is not None:
        steps, batch = f"up to {steps}", f"{batch}, until the reward is {section.target_reward:g}"
    return f"{steps}, {batch}" + (". They change the checkpoint's weights" if config.model.path else "")


def _training(config: RunConfig, level: str) -> Iterator[str]:
    section, output = config.training, config.output
    yield f"{_count(section.num_steps, 'step')} of {config.algorithm.name.upper()}"
    stages = config.sampling.two_stage
    drawn = _count(section.group_size, "completion" if stages is None else "reasoning")
    yield f"{_count(section.prompts_per_step, 'prompt')} of {drawn} each"
    if stages is not None:
        yield f"up to {stages.num_beams} items per reasoning"
    yield f"learning rate {config.optimizer.learning_rate:g}"
    yield f"level {level}"
    if output.resume:
        at = "" if output.resume_step is None else f" at step {output.resume_step} or the last before it"
        yield f"resumed from {output.resume}{at}"


def _deployment(section: DeploymentSection) -> Iterator[tuple[str, str]]:
    """Yield the line on where models train, unless it is this process alone."""
    ranks = _count(section.num_ranks, "rank")
    if section.backend == "in_process":
        if section.num_ranks > 1:
            yield "deployment", f"{ranks}, simulated in this process (deployment.backend: ray starts them)"
        return
    weights = {
        "none": "all weights on each",
        "full": "each with a shard of the weights",
        "hybrid": f"{section.num_copies} copies of the weights, sharded",
    }
    yield "deployment", f"{ranks} in actors of Ray, {weights[section.sharding]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
