"""Questions to a weight target of another process: they are plain, and so are the answers; errors arrive complete."""

import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore.errors import InvalidValueError, WeightSyncError
from rlcore.weights.receipts import Check, Receipt
from rlcore.weights.remote import Answerer, Ask, Question, RemoteTarget
from rlcore.weights.sync import sync
from rlcore.weights.target import WeightTarget, address_space
from rlcore.weights.transports.packing import fill, layout_of, num_bytes_of, views
from tests.rlcore.weights.targets import Target, learn, policy

pytestmark = pytest.mark.full

METHODS = {"describe", "begin", "poison", "write", "digests", "compare", "canary", "commit"}


class Ending(Target):
    """Ends its process in the middle of a sync."""

    def poison(self, names: Sequence[str]) -> None:
        raise SystemExit


class Slow(Target):
    """Does not answer."""

    def canary(self, tokens: Tensor) -> Tensor:
        multiprocessing.Event().wait(30)
        return super().canary(tokens)


class Broken(Target):
    """Has a fault of its own."""

    def digests(self, names: Sequence[str]) -> Mapping[str, str]:
        raise LookupError("a fault of the target")


def over_pipe(connection: Connection, *, timeout_s: float) -> Ask:
    """Return a channel over one end of a pipe; its calls raise TimeoutError, and EOFError if the other process ended.

    What `serve` could not answer is raised as it was raised there.
    """

    def ask(question: Question) -> Any:
        connection.send_bytes(pickle.dumps(question, pickle.HIGHEST_PROTOCOL))
        if not connection.poll(timeout_s if question.method == "canary" else 60.0):  # other answers come, if late
            raise TimeoutError(f"the weight target has not answered {question.method!r} in {timeout_s:g} s")
        is_error, answer = pickle.loads(connection.recv_bytes())
        if is_error:
            raise answer
        return answer

    return ask


def serve(connection: Connection, answer: Callable[[Question], Any]) -> None:
    """Answer the questions of the other end of a pipe until it is closed."""
    while True:
        try:
            question = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            reply = False, answer(question)
        except Exception as error:  # it belongs to the process that asked, and is raised there
            reply = True, error
        connection.send_bytes(pickle.dumps(reply, pickle.HIGHEST_PROTOCOL))


def answer_for(kind: Callable[[Any], WeightTarget], connection: Connection, callers: Connection) -> None:
    callers.close()  # a fork has it too, and would never see its end
    torch.set_num_threads(1)
    with connection:
        answerer = Answerer(kind(policy(seed=7)))
        serve(connection, answerer)
        answerer.close()


@contextmanager
def other_process(kind: Callable[[Any], WeightTarget], timeout_s: float = 60.0) -> Iterator[RemoteTarget]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer_for, args=(kind, theirs, ours))
    process.start()
    theirs.close()
    try:
        yield RemoteTarget(over_pipe(ours, timeout_s=timeout_s))
    finally:
        ours.close()
        process.join(0.5 if kind is Slow else 30)
        process.kill()
        process.join()


def in_this_process(asked: list[bytes], target: WeightTarget) -> RemoteTarget:
    """Return a target whose questions and answers are pickled, and kept."""
    answerer = Answerer(target)

    def ask(question: Question) -> Any:
        asked.append(pickle.dumps(question))
        answer = pickle.dumps(answerer(pickle.loads(asked[-1])))
        asked.append(answer)
        return pickle.loads(answer)

    return RemoteTarget(ask)


def test_syncs_to_another_process_have_the_receipts_of_this_one() -> None:
    decoder, local, receipts = policy(), Target(policy()), list[Receipt]()
    with other_process(Target) as target:
        own = None
        for version in (1, 2):
            own = sync(decoder, local, version, own)
            receipts.append(sync(decoder, target, version, receipts[-1] if receipts else None))
            assert receipts[-1].parameters == own.parameters
            assert receipts[-1].canary_distance < 1e-6
            learn(decoder)
        spaces = {spec.region.process for spec in target.describe().parameters.values() if spec.region}
        assert len(spaces) == 1 and spaces != {address_space()}
        assert target.describe().weights_digest == receipts[-1].weights_digest


def test_every_question_of_a_sync_is_asked_and_holds_no_tensor() -> None:
    asked: list[bytes] = []
    target = in_this_process(asked, Target(policy(seed=7)))
    decoder = policy()
    first = sync(decoder, target, 1, None)
    target.compare({"norm": decoder.norm.detach()})
    sync(decoder, target, 2, first)
    questions = [pickle.loads(content) for content in asked[::2]]
    assert {question.method for question in questions} == METHODS
    assert not any(b"_rebuild_tensor" in content for content in asked), "a tensor travelled by torch's own pickling"


def test_an_error_of_the_target_arrives_with_its_check_and_parameter() -> None:
    with other_process(Target) as target:
        target.begin(1)
        for chunk, parameter, message in (
            ({"nothing": torch.zeros(2)}, "nothing", "coverage: nothing was written as float32 [2], and the sampler"),
            ({"norm": torch.zeros(3)}, "norm", "coverage: norm was written as float32 [3], and the sampler has float"),
        ):
            with pytest.raises(WeightSyncError) as caught:
                target.write(chunk)
            assert (caught.value.check, caught.value.parameter) == (Check.COVERAGE, parameter)
            assert str(caught.value).startswith(message)
        with pytest.raises(WeightSyncError, match=r"fence: weights were written without begin\(\)\n  legal:  begin"):
            target.commit("")
            target.commit("")


def test_other_faults_of_the_target_are_raised_as_they_are() -> None:
    with other_process(Broken) as target:
        with pytest.raises(LookupError, match="a fault of the target"):
            target.digests(["norm"])
        assert target.describe().policy_version == 0, "the channel still works"


def test_a_process_that_ends_or_does_not_answer_is_reported() -> None:
    decoder = policy()
    with other_process(Ending) as target, pytest.raises(EOFError):
        sync(decoder, target, 1, None)
    with (
        other_process(Slow, timeout_s=0.3) as target,
        pytest.raises(TimeoutError, match="not answered 'canary'"),
    ):
        sync(decoder, target, 1, None)


def test_a_question_that_targets_do_not_have_is_refused() -> None:
    answerer = Answerer(Target(policy()))
    with pytest.raises(InvalidValueError, match="question 'overwrite'") as caught:
        answerer(Question("overwrite", ("norm",)))
    assert all(method in caught.value.legal for method in METHODS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
def test_packed_tensors_have_the_bits_of_the_originals(dtype: torch.dtype) -> None:
    bits = torch.randint(0, 256, (7 * 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    tensors = {"a": bits[:56].flatten().view(dtype), "empty": torch.empty(3, 0, dtype=dtype), "c": torch.tensor(2.5)}
    tensors["transposed"] = torch.arange(6, dtype=torch.float32).view(2, 3).t()
    layout = layout_of(tensors)
    buffer = torch.zeros(num_bytes_of(layout), dtype=torch.uint8)
    fill(layout, tensors, buffer)
    found = views(layout, buffer)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).contiguous().view(torch.uint8))
        assert not found[name].numel() or found[name].data_ptr() % found[name].element_size() == 0
