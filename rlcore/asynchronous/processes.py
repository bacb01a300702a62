"""What each of the three processes builds before it works, at its level of determinism."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SO_REUSEPORT, SOL_SOCKET, socket

import torch
import uvicorn

from harness.bits.tensor_digests import weights_digest
from rlcore.asynchronous.broadcast import BASE, map_base
from rlcore.asynchronous.directory import (
    BATCHES,
    BROADCASTS,
    POLL_S,
    RUN,
    claim,
    claimed,
    compare_settings,
    held,
    is_there,
)
from rlcore.asynchronous.infer import Backend, Inference, LocalBackend, logprobs_of
from rlcore.asynchronous.memory_share import share_beside
from rlcore.asynchronous.orchestrator import Orchestrator
from rlcore.asynchronous.settings import (
    EnvSection,
    Infer,
    Orch,
    RoleSection,
    Train,
    keys_of_env,
    task_section,
    training_config,
)
from rlcore.asynchronous.trainer import AsynchronousTrainer
from rlcore.data.environments import check_environment, stop_strings_of
from rlcore.data.tasks import Task, make_task
from rlcore.determinism import at_level, check_level_of_device
from rlcore.errors import InvalidValueError
from rlcore.log import NullRecorder, Recorder
from rlcore.memory import keep_freed_memory
from rlcore.models.build import build_model
from rlcore.models.checkpoints import load
from rlcore.models.config import LoraConfig
from rlcore.models.decoder import Decoder
from rlcore.models.tokenizer import load_tokenizer
from rlcore.numerics.probe import num_threads
from rlcore.samplers.vllm.versions import installed_version, isolated
from rlcore.seeds import key
from rlcore.trainers.deployment import deployed
from rlcore.trainers.remote import builder

Say = Callable[[str], None]
CONCURRENCY = 256
"""Completions that a sampler decodes together."""
NUM_THREADS = 1
AS_RECORDED = "write the recorded values into orch.yaml, or name another schedule"


def run_infer(section: Infer, say: Say, replica: str = "") -> int:
    """Serve completions until the process is ended. Raises InvalidValueError, LevelError.

    Replicas share a port, among which the kernel divides connections.
    """
    check_level_of_device(section.level, section.device)
    run, host, port = Path(section.output_dir), section.host, section.port
    wanted = "float32" if section.device == "cpu" else "bfloat16"
    if section.dtype not in ("auto", wanted):
        raise InvalidValueError(f"dtype {section.dtype} on {section.device}", legal=f"auto, or {wanted}: as is trained")
    with held(run, f"infer-{port}{replica}", say), _bound(host, port, is_shared=bool(replica)) as bound:
        tokenizer, lora = load_tokenizer(Path(section.model)), _adapters_of(section, run, say)
        base = load(Path(section.model), dtype=getattr(torch, wanted), device=section.device).requires_grad_(False)
        is_local = section.backend == "torch"
        if lora and is_local and section.device == "cpu":
            map_base(dict(base.named_parameters()), run / BASE)
        count = section.max_loras if lora and is_local else 1
        decoders = [base.with_adapters(lora).requires_grad_(False) if lora else base for _ in range(count)]
        decoder = decoders[0]
        limits = section.max_model_len, claimed(run, "train").get("sequence_len"), decoder.config.max_length
        length = min(each for each in limits if each)
        sizes = {"concurrency": CONCURRENCY, "length": length}
        with _computing(section, decoder, length, say), torch.inference_mode():
            backends = list[Backend]()
            if not is_local:
                installed_version()
                with isolated():
                    from rlcore.asynchronous.vllm_backend import VllmBackend
                room = {"cache_bytes": _cache_bytes(section, decoder)} if section.device == "cuda" else {}
                backends = [VllmBackend(decoder, tokenizer, **sizes, report=say, **room)]
            elif lora:
                backends = [LocalBackend(each, tokenizer, concurrency=CONCURRENCY) for each in decoders]
            inference = Inference(decoder, tokenizer, run / BROADCASTS, **sizes, backends=backends, base=base)
            say(f"serving completions at http://{host}:{port}/v1, weights of {run / BROADCASTS}")
            # With a connection for each request, the kernel's choice is one for each request.
            headers = [("Connection", "close")] if replica else []
            config = uvicorn.Config(inference.app(), log_level="warning", timeout_graceful_shutdown=1, headers=headers)
            uvicorn.Server(config).run(sockets=[bound])
    return 0


def _cache_bytes(section: Infer, decoder: Decoder) -> int:
    """Return the memory of a GPU for keys and values of vLLM: what is asked for, or is left beside a trainer."""
    total, known = torch.cuda.mem_get_info()[1], claimed(Path(section.output_dir), "train")
    share = section.gpu_memory_utilization
    if known and "gpu_memory_utilization" not in section.model_fields_set:
        share = share_beside(known, decoder.config, total)
    return int(share * total) - 2 * decoder.config.num_weights


def _adapters_of(section: Infer, run: Path, say: Say) -> LoraConfig | None:
    """Return what the trainer's adapters are, as it has claimed: waits for it. Raises InvalidValueError."""
    if not section.enable_lora:
        return None
    if not claimed(run, "train"):
        say(f"waits for the trainer of {run}, which knows of adapters")
    while not (known := claimed(run, "train")):
        time.sleep(POLL_S)
    if not known["lora"]:
        return None
    if section.max_lora_rank and known["lora_rank"] > section.max_lora_rank:
        what = f"adapters of rank {known['lora_rank']}"
        raise InvalidValueError(what, legal=f"max_lora_rank, {section.max_lora_rank}")
    return LoraConfig(known["lora_rank"], known["lora_alpha"], frozenset(known["lora_target_modules"]))


def _bound(host: str, port: int, *, is_shared: bool) -> socket:
    """Return a socket that does not listen yet: requests shall not wait in it while the model is loaded."""
    found = socket(AF_INET6 if ":" in host else AF_INET)
    for option in (SO_REUSEADDR, *[SO_REUSEPORT] * is_shared):
        found.setsockopt(SOL_SOCKET, option, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        what = f"port {port} of {host} cannot be had: {error.strerror}"
        raise InvalidValueError(what, remedy="another port, and client.base_url of orch.yaml with it") from error
    return found


def run_orch(section: Orch, say: Say) -> int:
    """Publish batches until the last."""
    run, tokenizer, sampling = Path(section.output_dir), load_tokenizer(Path(section.model.name)), section.sampling

    def tasks_of(envs: Sequence[EnvSection], where: str) -> Iterator[Task]:
        sizes = {"context": section.seq_len, "num_new_tokens": sampling.max_tokens}
        for number, env in enumerate(envs):
            with keys_of_env(each := f"{where}.{number}"):
                task = task_section(env, each)
                if task.environment is not None:
                    check_environment(task.environment, stop_strings_of(task.environment), section.level)
                try:
                    yield make_task(task, tokenizer, section.seed, **sizes)
                except InvalidValueError as error:
                    what = f"{each} ({env.id}): {error.what}"
                    raise InvalidValueError(what, legal=error.legal, remedy=error.remedy) from None

    tasks, teacher = [*tasks_of(section.env, "env")], section.teacher_model
    evaluated = [*tasks_of(section.eval.env if section.eval else (), "eval.env")]
    with ExitStack() as stack:
        stack.enter_context(held(run, "orch", say))
        left_out = {"client", "ckpt", "report_to", "max_steps", "model", "output_dir", "eval"}
        if sampling.temp_scheduler is not None:
            left_out.remove("max_steps")
        prompts = f"{key('prompts', *(prompt.id for task in tasks for prompt in task.train)):016x}"
        settings = {**section.model_dump(mode="json", exclude=left_out), "prompts": prompts}
        if section.mode == "replay" and is_there(Path(section.schedule) / BATCHES, 0):
            own = {"mode", "schedule", "max_async_level"}
            compare_settings(Path(section.schedule), "orch", settings, left_out=own, remedy=AS_RECORDED)
        claim(run, "orch", settings)
        ask = None
        if teacher is not None and teacher.client is None:
            if load_tokenizer(Path(teacher.model.name)).backend.get_vocab() != tokenizer.backend.get_vocab():
                what = f"the teacher {teacher.model.name} has another vocabulary than {section.model.name}"
                raise InvalidValueError(what, legal="a teacher whose tokens have the same numbers")
            decoder = load(Path(teacher.model.name)).requires_grad_(False)
            stack.enter_context(_computing(section, decoder, section.seq_len, say))
            ask = partial(logprobs_of, decoder)
        making = Orchestrator(section, run, tasks, tokenizer, say, evaluated=evaluated, teacher=ask)
        asyncio.run(making.work())
    return 0


def run_train(
    section: Train, say: Say, recorder: Recorder | None = None, tend: Callable[[], None] = lambda: None
) -> int:
    """Train until the last batch; call `tend` while waiting for the next."""
    keep_freed_memory()
    run, config, recorder = Path(section.output_dir) / RUN, training_config(section), recorder or NullRecorder()
    tokenizer, decoder = build_model(config)
    left_out = {"logging_steps", "model", "output_dir", "device", "gpus", "zero_level", "seed", "max_async_level"}
    if section.lr_scheduler_type == "constant":  # a run may be made longer
        left_out.add("max_steps")
    with (
        held(run, "train", say),
        _computing(section, decoder, length := min(section.sequence_len, decoder.config.max_length), say),
        deployed(config, section.level, length, recorder, say) as workers,
    ):
        weights = weights_digest(dict(decoder.named_parameters()))
        claim(run, "train", {**section.model_dump(mode="json", exclude=left_out), "weights": weights})
        frozen = {name: each for name, each in decoder.named_parameters() if not each.requires_grad}
        if frozen and workers is None and section.device == "cpu":
            map_base(frozen, run / BASE)
        record, build = builder(config, decoder, recorder, workers)
        AsynchronousTrainer(section, run, build("policy"), tokenizer, record=record, say=say).work(tend)
    return 0


@contextmanager
def _computing(section: RoleSection, decoder: Decoder, length: int, say: Say) -> Iterator[None]:
    level, weights = section.level, decoder.embedding
    say(f"level {level}: looks at this machine's operations" if level == "invariant" else f"level {level}")
    about = partial(at_level, level, decoder.config, dtype=weights.dtype, device=str(weights.device))
    with about(length=length, threads=(NUM_THREADS,)), num_threads(NUM_THREADS):
        yield
