"""An engine of vLLM in a process of its own: the contract of samplers, the local sampler's bits, and its end.

One engine serves all tests of this file but those of its end. It has little memory and short passes: requests are
preempted, prompts read in chunks, and prefixes found in its cache, as in `test_vllm_parity.py`.
"""

import gc
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
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from rlcore.errors import LevelError, SamplerError, WeightSyncError
from rlcore.numerics.level import following
from rlcore.numerics.probe import STRATEGIES
from rlcore.samplers.replicas import ReplicaSampler
from rlcore.samplers.torch_sampler import TorchSampler
from rlcore.samplers.vllm.plugin import VARIABLE
from rlcore.weights.receipts import Check
from rlcore.weights.remote import RemoteTarget
from rlcore.weights.sync import sync
from rlcore.weights.transports.shared_memory import SharedChunk
from tests.conformance.next_tokens_suite import MakeNextTokens, NextTokensConformance, asked
from tests.conformance.next_tokens_suite import bits as bits_of_answers
from tests.conformance.sampler_suite import MakeSampler, SamplerConformance, all_wanted, bits
from tests.rlcore.training.recorded import Digests, config, first_difference, recorded
from tests.rlcore.weights.targets import learn
from tests.support.parity import FEW_BLOCKS, check_nan_leaves_nothing, num_different, requests_of
from tests.support.samplers import TOKENIZER, decoder_of
from tests.support.vllm_engines import CONCURRENCY, give_weights, need_vllm, process_engine
from tests.support.vllm_trainer import RUN

if TYPE_CHECKING:
    from rlcore.samplers.vllm.process_engine import ProcessEngine
    from rlcore.samplers.vllm.sampler import VllmSampler

need_vllm()
pytestmark = pytest.mark.timeout(200)
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def engine() -> Iterator["ProcessEngine"]:
    with process_engine(decoder_of("qwen3", spread=6.0), num_blocks=FEW_BLOCKS, max_batched_tokens=24) as started:
        yield started


@pytest.fixture
def lend(engine: "ProcessEngine") -> Iterator[Callable[..., "VllmSampler"]]:
    """Make samplers at level invariant, each with the weights as at first: one engine has one set of them."""
    from rlcore.samplers.vllm.sampler import VllmSampler

    def lend(concurrency: int = CONCURRENCY, **options: int) -> VllmSampler:
        give_weights(engine, decoder_of("qwen3", spread=6.0))
        return VllmSampler(engine, TOKENIZER, concurrency=min(concurrency, CONCURRENCY), **options)

    with following(STRATEGIES[0]):
        yield lend


class TestSampler(SamplerConformance):
    @pytest.fixture
    def make(self, lend: Callable[..., "VllmSampler"]) -> MakeSampler:
        return lend


def test_it_draws_as_a_replica_beside_another_sampler(lend: Callable[..., "VllmSampler"]) -> None:
    local = TorchSampler(decoder_of("qwen3", spread=6.0), TOKENIZER, concurrency=4)
    pair = ReplicaSampler([lend(5), TorchSampler(decoder_of("qwen3", spread=6.0), TOKENIZER)], run_together=True)
    receipt = sync(decoder_of("qwen3", spread=5.0), pair.weight_target, 3, None)
    sync(decoder_of("qwen3", spread=5.0), local.weight_target, 3, None)
    assert receipt.canary_distance == 0.0
    assert bits(pair.sample(all_wanted())) == bits(local.sample(all_wanted()))


class TestNextTokens(NextTokensConformance):
    @pytest.fixture
    def make(self, lend: Callable[..., "VllmSampler"]) -> MakeNextTokens:
        return lend


# ------------------------------------------------------------------------------------------------------------- the bits


def test_nothing_that_vllm_does_moves_a_bit(lend: Callable[..., "VllmSampler"]) -> None:
    decoder, requests = decoder_of("qwen3", spread=6.0), requests_of()
    with torch.no_grad():
        local = TorchSampler(decoder, TOKENIZER, concurrency=7).sample(requests)
        for order, concurrency, preempt_every in ((0, 16, 0), (1, 5, 0), (2, 3, 4)):
            places = list(range(len(requests)))
            random.Random(order).shuffle(places)
            drawn = lend(concurrency, preempt_every=preempt_every).sample([requests[place] for place in places])
            found = [each for _, each in sorted(zip(places, drawn, strict=True), key=lambda pair: pair[0])]
            assert bits(found) == bits(local)
            assert num_different(decoder, found) == 0
        answers = TorchSampler(decoder, TOKENIZER).next_tokens(asked())
    assert bits_of_answers(lend().next_tokens(asked())) == bits_of_answers(answers)


def test_prefixes_are_found_in_the_cache_of_the_process(engine: "ProcessEngine") -> None:
    first, *_, last = requests_of(1)
    for request, num_cached in ((first, 0), (last, 40)):
        (drawn,) = engine.first_tokens(
            [engine.add(request.prompt.tokens, max_tokens=1, stop_ids=(), key=0, params=request.params)]
        )
        assert drawn.num_cached == num_cached
        if request is first:
            assert engine.reset_cache()
            engine.first_tokens(
                [engine.add(request.prompt.tokens, max_tokens=1, stop_ids=(), key=0, params=request.params)]
            )


def test_at_level_off_in_the_process_some_bits_differ(engine: "ProcessEngine") -> None:
    """The control. The trainer's pass is at level invariant: only the engine's process is not."""
    from rlcore.samplers.vllm.sampler import VllmSampler

    decoder = decoder_of("qwen3", spread=6.0)
    give_weights(engine, decoder)
    drawn = VllmSampler(engine, TOKENIZER).sample(requests_of())
    with following(STRATEGIES[0]), torch.no_grad():
        assert num_different(decoder, drawn) > 0


def test_a_level_that_the_process_cannot_hold_is_refused(engine: "ProcessEngine") -> None:
    from rlcore.samplers.vllm.levels import Level

    with pytest.raises(LevelError, match="no kernel strategy is batch-invariant"):
        engine.ask("follow", Level("a strategy of another version", 64, False, 1))


def test_nan_is_named_and_no_page_keeps_it(lend: Callable[..., "VllmSampler"]) -> None:
    check_nan_leaves_nothing(lend(8), decoder_of("qwen3", spread=6.0))


# ---------------------------------------------------------------------------------------------------------- the weights


def test_honest_syncs_raise_no_alarm_and_completions_are_those_of_the_weights(
    lend: Callable[..., "VllmSampler"],
) -> None:
    decoder, sampler, receipt = decoder_of("qwen3", spread=6.0), lend(), None
    for version in range(1, 6):
        learn(decoder, seed=version)
        receipt = sync(decoder, sampler.weight_target, version, receipt, has_learned=receipt is not None)
        assert receipt.canary_distance == 0.0
        drawn = sampler.sample(all_wanted())
        assert all(each.weights_digests == {version: receipt.weights_digest} for each in drawn)
        assert bits(drawn) == bits(TorchSampler(decoder, TOKENIZER).sample(all_wanted()))


def test_a_prefix_cache_that_is_not_reset_is_found_by_the_canary(
    lend: Callable[..., "VllmSampler"], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlcore.samplers.vllm.process_engine import ProcessEngine

    decoder, target = decoder_of("qwen3", spread=6.0), lend().weight_target
    first = sync(decoder, target, 1, None)
    learn(decoder)
    with monkeypatch.context() as without_reset:
        without_reset.setattr(ProcessEngine, "reset_cache", lambda engine: True)
        with pytest.raises(WeightSyncError, match="caches") as caught:
            sync(decoder, target, 2, first)
    assert caught.value.check == Check.CANARY
    assert sync(decoder, target, 2, None).canary_distance == 0.0


def test_weights_travel_through_shared_memory(lend: Callable[..., "VllmSampler"]) -> None:
    decoder, target, parcels = decoder_of("qwen3", spread=6.0), lend().weight_target, list[type]()
    assert isinstance(target, RemoteTarget)
    channel = target._ask

    def noted(method: str, *given: object) -> object:
        parcels.extend(type(each) for each in given if method == "write")
        return channel(method, *given)

    target._ask = noted
    sync(decoder, target, 1, None)
    assert set(parcels) == {SharedChunk}


def test_weights_that_another_writes_are_found(lend: Callable[..., "VllmSampler"], engine: "ProcessEngine") -> None:
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


def test_requests_of_another_are_found_and_the_engine_computes_on(
    lend: Callable[..., "VllmSampler"], engine: "ProcessEngine"
) -> None:
    decoder, sampler = decoder_of("qwen3", spread=6.0), lend()
    left = engine.add((1, 2, 3), max_tokens=90, stop_ids=(), key=1, params=all_wanted()[0].params)
    engine.step()
    with pytest.raises(WeightSyncError, match="prefix cache") as caught:
        sync(decoder, sampler.weight_target, 1, None)
    assert caught.value.check == Check.FENCE
    engine.step()
    engine.abort([left])
    sync(decoder, sampler.weight_target, 1, None)


def test_the_engine_computes_no_pass_during_a_sync(lend: Callable[..., "VllmSampler"], engine: "ProcessEngine") -> None:
    target = lend().weight_target
    target.begin(1)
    engine.add((1, 2, 3), max_tokens=1, stop_ids=(), key=1, params=all_wanted()[0].params)
    drawn: list[object] = []
    waits = threading.Thread(target=lambda: drawn.extend(engine.step()))
    waits.start()
    waits.join(timeout=1.0)
    assert waits.is_alive() and not drawn
    target.commit("first")
    waits.join()
    assert len(drawn) == 1


# ------------------------------------------------------------------------------------------------------------- its end


def have_ended(processes: list[psutil.Process], within_s: float = 10.0) -> bool:
    """Whether processes end in time."""
    return not psutil.wait_procs(processes, timeout=within_s)[1]


RECORDER = """import os
if os.environ.get("VLLM_BATCH_INVARIANT") != "1":
    os._exit(4)
"""
"""Ends a process without the level's variable: the recorder would report it as one outside of the level."""


def start_trainer(directory: Path) -> "subprocess.Popen[str]":
    """Start `tests.support.vllm_trainer` in a session of its own."""
    (directory / "sitecustomize.py").write_text(RECORDER, "utf-8")
    paths = [str(directory), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.vllm_trainer", str(directory)],
        cwd=ROOT,
        env=os.environ | {"VLLM_BATCH_INVARIANT": "1", "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


class Trainer:
    """A trainer that has trained and samples on."""

    def __init__(self, directory: Path) -> None:
        self.process = start_trainer(directory)
        reported = directory / "recorded"
        while not reported.exists():
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.1)
        self.digests: Digests
        self.digests, process_ids = pickle.loads(reported.read_bytes())
        self.engine = [psutil.Process(each) for each in process_ids]

    def ends(self) -> str:
        """Wait until trainer and engine have ended; return what the trainer wrote as its errors."""
        _, errors = self.process.communicate(timeout=20)
        assert self.engine and have_ended(self.engine)
        return errors


def test_a_trainer_that_is_killed_while_its_engine_starts_leaves_no_engine(tmp_path: Path) -> None:
    """Before vLLM has looked for entry points: its process waits for the trainer then, for ever."""
    process = start_trainer(tmp_path)
    try:
        engine: list[psutil.Process] = []
        while not engine:
            assert process.poll() is None, process.communicate()[1]
            children = psutil.Process(process.pid).children()
            with suppress(psutil.NoSuchProcess):
                engine = [each for each in children if any("spawn_main" in word for word in each.cmdline())]
            time.sleep(0.01)
        time.sleep(0.5)  # it has what it was started with, and still imports
        process.kill()
        assert have_ended(engine, within_s=30.0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    started = Trainer(tmp_path)
    yield started
    with suppress(ProcessLookupError):
        os.killpg(started.process.pid, signal.SIGKILL)
    started.process.wait()


def test_a_run_is_that_of_the_local_sampler_and_its_engine_ends_with_a_killed_trainer(
    trainer: Trainer, tmp_path: Path
) -> None:
    local = recorded(config(**RUN), tmp_path / "local")
    assert first_difference(local, trainer.digests) is None
    assert trainer.digests.leaves.keys() == local.leaves.keys()
    os.kill(trainer.process.pid, signal.SIGKILL)
    trainer.ends()


def test_ctrl_c_ends_trainer_and_engine(trainer: Trainer) -> None:
    """A terminal sends it to both."""
    os.killpg(trainer.process.pid, signal.SIGINT)
    assert trainer.ends().splitlines()[-1] == "KeyboardInterrupt"


# vLLM leaves the sockets of an engine that did not start to the collector, which finds them open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_dies_while_it_starts_is_named_and_none_is_left() -> None:
    this = psutil.Process()
    before = {each.pid for each in this.children()}
    started: list[psutil.Process] = []

    def kill() -> None:
        while not started:
            new = [each for each in this.children() if each.pid not in before]
            started.extend(each for each in new if any("spawn_main" in word for word in each.cmdline()))
            time.sleep(0.01)
        started[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(SamplerError, match="ended while it started"), process_engine(decoder_of("qwen3")):
        pass
    killer.join()
    assert have_ended(started)
    assert VARIABLE not in os.environ
    gc.collect()


def test_an_engine_that_dies_is_named_and_the_next_call_too(engine: "ProcessEngine") -> None:
    """The last test of the file, since all share this engine."""
    from rlcore.samplers.vllm.sampler import VllmSampler

    give_weights(engine, decoder_of("qwen3", spread=6.0))
    processes = [psutil.Process(each) for each in engine.process_ids]
    sampler = VllmSampler(engine, TOKENIZER)

    def kill(num_done: int, num_wanted: int) -> None:
        processes[0].kill()

    with following(STRATEGIES[0]):
        for progress in (kill, None):
            with pytest.raises(SamplerError, match="the engine's process has ended"):
                sampler.sample(requests_of(), progress=progress)
    assert have_ended(processes)
