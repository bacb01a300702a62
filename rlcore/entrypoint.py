"""A whole run, from a configuration to trained weights: the entry of this package's scenarios.

    read and check ─▶ task, model, level ─▶ announce ─▶ warm start (or resume) ─▶ steps ─▶ evaluation, checkpoint

One thread; one process, or those of a deployment. What is recorded of a step is recorded between begin_step and
end_step; the warm start and the first sync come before, so that a resumed run has the same steps, and the warm start is
recorded in the first of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rlcore.checkpoints.checkpoint import load_newest
from rlcore.checkpoints.resume import DIRECTORY
from rlcore.config import RunConfig, read_config
from rlcore.controllers.setup import longest_sequence, prepare
from rlcore.controllers.synchronous import loop
from rlcore.data.tasks import make_task
from rlcore.determinism import at_level, check_level_of_device
from rlcore.distributed.restarts import RestartPolicy, run_with_restarts
from rlcore.errors import InvalidValueError, WorkerDiedError
from rlcore.log import Recorder
from rlcore.memory import keep_freed_memory
from rlcore.models.build import build_model
from rlcore.numerics.probe import num_threads
from rlcore.observability.announcement import announcement
from rlcore.observability.logs import RunLog, check_output
from rlcore.samplers.build import check_level_of_sampler, check_sampler
from rlcore.train_state import TrainState
from rlcore.trainers.deployment import deployed


def run(config: Mapping[str, Any], *, level: str, directory: Path, recorder: Recorder) -> None:
    """Train as `config` says, at a level of determinism; everything is written below `directory`.

    Raises InvalidValueError for a configuration that cannot be, LevelError, NonFiniteError, CheckpointError.
    """
    train(read_config(config), level=level, directory=directory, recorder=recorder)


def config_schema() -> dict[str, Any]:
    """Return the JSON schema of the configurations that `run` takes."""
    return RunConfig.model_json_schema()


def train(config: RunConfig, *, level: str, directory: Path, recorder: Recorder) -> TrainState:
    """Train as a configuration that has been read says; return the state at the end."""
    reward_model = config.task.reward_model
    for name, directory_given in (
        ("model.path", config.model.path),
        ("output.resume", config.output.resume),
        ("deployment.offload_directory", config.deployment.offload_directory),
        ("task.reward_model.path", reward_model.path if reward_model else ""),
    ):
        if directory_given and not Path(directory_given).is_dir():
            raise InvalidValueError(f"{name} {directory_given!r}", legal="a directory that exists")
    check_device(config.model.device, level)
    check_sampler(config)
    check_level_of_sampler(config, level)
    check_output(config.output)
    keep_freed_memory()
    tokenizer, decoder = build_model(config)
    task = make_task(config.task, tokenizer, config.seed)
    dtype = decoder.embedding.dtype
    threads = config.runtime.training_threads, config.runtime.sampling_threads
    section, length = config.model, longest_sequence(task, config, tokenizer)
    held = at_level(
        level,
        decoder.config,
        dtype=dtype,
        device=section.device,
        length=length,
        threads=threads,
    )
    log = RunLog(directory, config.output)

    def start(num_restarts: int) -> TrainState:
        own = resumed_config(config, directory) if num_restarts else config
        with deployed(own, level, length, recorder, log.say) as workers:
            state, first = prepare(
                own,
                level,
                task,
                tokenizer=tokenizer,
                decoder=decoder,
                recorder=recorder,
                log=log,
                workers=workers,
            )
            loop(state, first, directory, log)
            return state

    policy = RestartPolicy(config.deployment.on_worker_death, config.deployment.max_restarts)
    with held, num_threads(threads[0]):  # else torch's own number, which is that of the cores
        log.say(announcement(config, level=level, num_parameters=sum(each.numel() for each in decoder.parameters())))
        try:
            return run_with_restarts(start, policy, deaths=(WorkerDiedError,), say=log.say)
        finally:
            log.close()


def resumed_config(config: RunConfig, directory: Path) -> RunConfig:
    """Return the configuration that continues from the run's own newest checkpoint; unchanged if there is none yet."""
    if load_newest(directory / DIRECTORY) is None:
        return config
    output = config.output.model_copy(update={"resume": str(directory), "resume_step": None})
    return config.model_copy(update={"output": output})


def check_device(name: str, level: str) -> None:
    """Raise InvalidValueError for a device that torch does not know or does not have here, LevelError for the level."""
    try:
        device = torch.device(name)
        check_level_of_device(level, name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InvalidValueError(
            f"model.device {name!r}: {str(error).splitlines()[0]}",
            legal="cpu, or cuda where torch.cuda.is_available()",
        ) from error
