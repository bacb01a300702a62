"""vLLM's engine: the local sampler's bits whatever vLLM does, weights that are proven, and its end."""

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcore.determinism import at_level
from rlcore.errors import LevelError, WeightSyncError, WorkerDiedError, WorkerError
from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers.replicas import ReplicaSampler
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.seeds import completion_key
from rlcore.types import Prompt, SampleRequest, SamplingParams
from rlcore.weights.proven_sync import sync
from rlcore.weights.receipts import Check
from rlcore.weights.remote import RemoteTarget
from tests.conformance.sampler_suite import all_wanted, bits
from tests.rlcore.training.recorded import Digests, config, first_difference, recorded
from tests.rlcore.weights.targets import learn
from tests.support.parity import FEW_BLOCKS, check_nan_leaves_nothing, num_different, requests_of
from tests.support.samplers import TOKENIZER, decoder_of, whenever_decoded
from tests.support.vllm_engines import CONCURRENCY, give_weights, lending, need_vllm
from tests.support.vllm_trainer import RUN

if TYPE_CHECKING:
    from rlcore.samplers.vllm.engine import Engine
    from rlcore.samplers.vllm.sampler import VllmSampler

need_vllm()
pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).resolve().parents[4]
LITTLE: dict[str, Any] = {"num_blocks": FEW_BLOCKS, "max_batched_tokens": 24}
"""Requests are preempted for lack of memory, and prompts read in chunks."""
SETTINGS: dict[str, dict[str, Any]] = {
    "little memory, short passes": LITTLE,
    "one slot a block": {"block_size": 1, "num_blocks": 160, "max_batched_tokens": 17},
    "large blocks": {"block_size": 32},
}
Lend = Callable[..., "VllmSampler"]


@pytest.fixture
def following_it() -> Iterator[None]:
    with following(STRATEGIES[0]), torch.no_grad():
        yield


@pytest.fixture(scope="module")
def engine() -> Iterator["Engine"]:
    from rlcore.samplers.vllm.engine import Engine, EngineSettings

    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # a test alters the model
    started = Engine(decoder_of("qwen3", spread=6.0), EngineSettings(max_length=96, concurrency=CONCURRENCY, **LITTLE))
    del os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"]
    yield started
    started.close()


@pytest.fixture
def lend(engine: "Engine", following_it: None) -> Lend:
    """Make samplers of one engine, each with the weights as at first."""
    from rlcore.samplers.vllm.sampler import VllmSampler

    def lend(concurrency: int = CONCURRENCY, **options: int) -> "VllmSampler":
        give_weights(engine, decoder_of("qwen3", spread=6.0))
        return VllmSampler(engine, TOKENIZER, concurrency=concurrency, **options)

    return lend


# ------------------------------------------------------------------------------------------------------------- the bits


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.usefixtures("following_it")
def test_nothing_that_vllm_does_moves_a_bit(name: str) -> None:
    decoder, requests = decoder_of("qwen3", spread=6.0), requests_of()
    local = TorchSampler(decoder, TOKENIZER, concurrency=7).sample(requests)
    with lending(decoder) as lend:
        sampler = lend(TOKENIZER, **SETTINGS[name])
        for order, concurrency, preempt_every in ((0, 16, 0), (1, 5, 0), (2, 3, 4)):
            sampler = type(sampler)(sampler.engine, TOKENIZER, concurrency=concurrency, preempt_every=preempt_every)
            places = list(range(len(requests)))
            random.Random(order).shuffle(places)
            drawn = sampler.sample([requests[place] for place in places])
            found = [each for _, each in sorted(zip(places, drawn, strict=True), key=lambda pair: pair[0])]
            assert bits(found) == bits(local)
            assert num_different(decoder, found) == 0


def test_at_level_off_some_bits_differ(engine: "Engine") -> None:
    """The control. The trainer's pass is at level invariant: only the engine's process is not."""
    from rlcore.samplers.vllm.sampler import VllmSampler

    decoder = decoder_of("qwen3", spread=6.0)
    give_weights(engine, decoder)
    drawn = VllmSampler(engine, TOKENIZER).sample(requests_of())
    with following(STRATEGIES[0]), torch.no_grad():
        assert num_different(decoder, drawn) > 0


def test_prefixes_are_found_in_the_cache(engine: "Engine", lend: Lend) -> None:
    from rlcore.samplers.vllm.draw import draw_argument

    first, *_, last = requests_of(1)
    lend()
    for request, num_cached in ((first, 0), (last, 40)):
        engine.add(request.prompt.tokens, draw_argument(0, request.params))
        (output,) = engine.llm.step()
        assert output.num_cached_tokens == num_cached


def test_a_level_that_the_process_cannot_hold_is_refused(engine: "Engine") -> None:
    from rlcore.samplers.vllm.extension import Level

    with pytest.raises(LevelError, match="the engine's process holds level invariant by"):
        engine.ask("follow", Level("invariant", "a strategy of another version", 64, 1))


sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    temperature=st.sampled_from([0.0, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    stop_ids=st.sampled_from([(), (7,), (5, 9, 1 << 20)]),
    stop_strings=st.sampled_from([(), ("ab",), ("e", "xyz")]),
)


@pytest.mark.usefixtures("following_it")
@settings(max_examples=25, deadline=None)
@given(
    several=st.lists(st.tuples(sampling, st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=10),
    concurrency=st.integers(1, 16),
    preempt_every=st.sampled_from([0, 1, 3]),
)
def test_whatever_is_asked_for_is_drawn_as_the_local_sampler_draws_it(
    several: list[tuple[SamplingParams, int, int]], concurrency: int, preempt_every: int
) -> None:
    decoder = decoder_of("qwen3", spread=6.0)
    requests = [
        SampleRequest(
            Prompt(f"p{length}", "", tuple(3 + (7 * at) % 17 for at in range(length))),
            index,
            completion_key(seed=1, step=0, prompt_id=f"p{length}", sample_index=index),
            params,
        )
        for params, length, index in several
    ]
    local = TorchSampler(decoder, TOKENIZER, concurrency=4).sample(requests)
    with lending(decoder) as lend:
        found = lend(TOKENIZER, concurrency, preempt_every=preempt_every, **LITTLE).sample(requests)
    assert bits(found) == bits(local)
    assert num_different(decoder, found) == 0


def test_bf16_has_the_local_samplers_bits() -> None:
    decoder = decoder_of("qwen3", torch.bfloat16, spread=6.0)
    requests = requests_of(2, SamplingParams(max_tokens=8, temperature=0.7))
    with at_level("invariant", decoder.config, dtype=torch.bfloat16, length=96), lending(decoder) as lend:
        assert bits(lend(TOKENIZER).sample(requests)) == bits(TorchSampler(decoder, TOKENIZER).sample(requests))


def test_nan_is_named_and_no_page_keeps_it(lend: Lend) -> None:
    check_nan_leaves_nothing(lend(8), decoder_of("qwen3", spread=6.0))


def test_it_draws_as_a_replica_beside_another_sampler(lend: Lend) -> None:
    local = TorchSampler(decoder_of("qwen3", spread=6.0), TOKENIZER, concurrency=4)
    pair = ReplicaSampler([lend(5), TorchSampler(decoder_of("qwen3", spread=6.0), TOKENIZER)])
    receipt = sync(decoder_of("qwen3", spread=5.0), pair.weight_target, 3, None)
    sync(decoder_of("qwen3", spread=5.0), local.weight_target, 3, None)
    assert receipt.canary_distance == 0.0
    assert bits(pair.sample(all_wanted())) == bits(local.sample(all_wanted()))


# ---------------------------------------------------------------------------------------------------------- the weights


def test_honest_syncs_raise_no_alarm_and_completions_are_those_of_the_weights(lend: Lend) -> None:
    decoder, sampler, receipt = decoder_of("qwen3", spread=6.0), lend(), None
    for version in range(1, 6):
        learn(decoder, seed=version)
        receipt = sync(decoder, sampler.weight_target, version, receipt, has_learned=receipt is not None)
        assert receipt.canary_distance == 0.0
        drawn = sampler.sample(all_wanted())
        assert all(each.weights_digests == {version: receipt.weights_digest} for each in drawn)
        assert bits(drawn) == bits(TorchSampler(decoder, TOKENIZER).sample(all_wanted()))


def test_a_prefix_cache_that_is_not_reset_is_found_by_the_canary(
    lend: Lend, engine: "Engine", monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, target = decoder_of("qwen3", spread=6.0), lend().weight_target
    first = sync(decoder, target, 1, None)
    learn(decoder)
    with monkeypatch.context() as without_reset:
        without_reset.setattr(engine, "reset_cache", lambda: True)
        with pytest.raises(WeightSyncError, match="caches") as caught:
            sync(decoder, target, 2, first)
    assert caught.value.check == Check.CANARY
    assert sync(decoder, target, 2, None).canary_distance == 0.0


def test_weights_that_another_writes_are_found(lend: Lend, engine: "Engine") -> None:
    decoder, sampler = decoder_of("qwen3", spread=6.0), lend()
    receipt = sync(decoder, sampler.weight_target, 1, None)
    other = RemoteTarget(engine.ask)
    other.begin(1)
    other.write([("norm", torch.zeros_like(decoder.norm))])
    other.commit(receipt.weights_digest)
    learn(decoder)
    with pytest.raises(WeightSyncError) as caught:
        sync(decoder, sampler.weight_target, 2, receipt)
    assert caught.value.check == Check.HELD


def test_requests_of_another_are_found_and_the_engine_computes_on(lend: Lend, engine: "Engine") -> None:
    from rlcore.samplers.vllm.draw import draw_argument

    decoder, sampler = decoder_of("qwen3", spread=6.0), lend()
    left = engine.add((1, 2, 3), draw_argument(1, all_wanted()[0].params), max_tokens=90)
    engine.step()
    with pytest.raises(WeightSyncError, match="prefix cache") as caught:
        sync(decoder, sampler.weight_target, 1, None)
    assert caught.value.check == Check.FENCE
    engine.step()
    engine.abort([left])
    sync(decoder, sampler.weight_target, 1, None)


def test_nothing_is_drawn_in_the_middle_of_a_sync(lend: Lend) -> None:
    sampler = lend()
    sampler.weight_target.begin(1)
    with pytest.raises(WeightSyncError, match="has begun"):
        sampler.sample(all_wanted())


def test_a_layer_that_computes_something_else_is_named(lend: Lend, engine: "Engine") -> None:
    def alter(worker: Any) -> None:
        layer = worker.model_runner.model.decoder.layers[1]
        forward = layer.forward
        layer.forward = lambda x, by: forward(x, by) * (1 + 2**-20)

    def mend(worker: Any) -> None:
        del worker.model_runner.model.decoder.layers[1].forward

    decoder, target = decoder_of("qwen3", spread=6.0), lend().weight_target
    engine.llm.collective_rpc(alter)
    try:
        with pytest.raises(WeightSyncError, match=r"activations that differ are those of layers\.1, from position 0"):
            sync(decoder, target, 1, None)
    finally:
        engine.llm.collective_rpc(mend)
    assert sync(decoder, target, 1, None).canary_distance == 0.0


# ------------------------------------------------------------------------------------------------------------- its end


def have_ended(processes: list[psutil.Process], within_s: float = 10.0) -> bool:
    """Whether processes end in time."""
    return not psutil.wait_procs(processes, timeout=within_s)[1]


def engines_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the engines that a process starts, or has."""
    with suppress(psutil.NoSuchProcess):
        return [each for each in process.children() if any("spawn_main" in word for word in each.cmdline())]
    return []


class Trainer:
    """`tests.support.vllm_trainer`, in a session of its own."""

    def __init__(self, directory: Path) -> None:
        self.reported = directory / "recorded"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.vllm_trainer", str(directory)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.engines: list[psutil.Process] = []

    def await_true(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.01)

    def has_engine(self) -> bool:
        self.engines = engines_of(psutil.Process(self.process.pid))
        return bool(self.engines)

    def trained(self) -> Digests:
        """Wait until it has trained and samples on; return what it recorded."""
        self.await_true(self.reported.exists)
        digests: Digests
        digests, pid = pickle.loads(self.reported.read_bytes())
        self.engines = [psutil.Process(pid)]
        return digests


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    started = Trainer(tmp_path)
    yield started
    with suppress(ProcessLookupError):
        os.killpg(started.process.pid, signal.SIGKILL)
    started.process.communicate()


def test_a_trainer_that_is_killed_while_its_engine_starts_leaves_no_engine(trainer: Trainer) -> None:
    trainer.await_true(trainer.has_engine)
    time.sleep(0.5)  # it has what it was started with, and still imports
    trainer.process.kill()
    assert have_ended(trainer.engines, within_s=60.0)


def test_a_run_is_that_of_the_local_sampler_and_its_engine_ends_with_a_killed_trainer(
    trainer: Trainer, tmp_path: Path
) -> None:
    found, local = trainer.trained(), recorded(config(**RUN), tmp_path / "local")
    assert first_difference(local, found) is None and found.leaves.keys() == local.leaves.keys()
    trainer.process.kill()
    assert have_ended(trainer.engines)


def test_ctrl_c_ends_trainer_and_engine(trainer: Trainer) -> None:
    """A terminal sends it to both."""
    trainer.trained()
    os.killpg(trainer.process.pid, signal.SIGINT)
    _, errors = trainer.process.communicate(timeout=20)
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert have_ended(trainer.engines)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # vLLM leaves sockets to the collector
def test_an_engine_that_dies_while_it_starts_is_named_and_none_is_left() -> None:
    from rlcore.samplers.vllm.engine import Engine, EngineSettings

    this, started = psutil.Process(), list[psutil.Process]()
    before = {each.pid for each in this.children()}

    def kill() -> None:
        while not started:
            started.extend(each for each in engines_of(this) if each.pid not in before)
            time.sleep(0.01)
        started[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerError, match="sampler's process ended while it started"):
        Engine(decoder_of("qwen3"), EngineSettings(max_length=96, concurrency=1))
    killer.join()
    assert have_ended(started)


def test_an_engine_that_dies_is_named_and_the_next_call_too(lend: Lend, engine: "Engine") -> None:
    """The last test of the file, since all share this engine."""
    sampler, process = lend(), psutil.Process(engine.pid)

    for kill in (process.kill, int):
        with (
            whenever_decoded(TOKENIZER, kill),
            pytest.raises(
                WorkerDiedError, match=rf"sampler's process, pid {engine.pid}, was killed by SIGKILL"
            ) as died,
        ):
            sampler.sample(requests_of())
        assert (died.value.role, died.value.pid) == ("sampler", engine.pid)
        assert "output.resume=" in died.value.remedy
    assert have_ended([process])
