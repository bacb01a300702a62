"""What a target says of its parameters: plain values, whatever their memory looks like."""

import multiprocessing
import pickle

import pytest
import torch
from torch import Tensor

from rlcore.errors import WeightSyncError
from rlcore.weights.coverage import check_poisoned
from rlcore.weights.digests import tensor_digests
from rlcore.weights.ownership import check_ownership, probe_ownership
from rlcore.weights.receipts import Check
from rlcore.weights.target import ParameterSpec, Region, address_space
from tests.rlcore.weights.targets import Target, learn, policy

HERE = address_space()


def send_address_space(connection: "multiprocessing.connection.Connection") -> None:
    connection.send(address_space())


@pytest.mark.parametrize(
    ("tensor", "num_bytes_reached"),
    [(torch.zeros(3, 4), 48), (torch.zeros(3, 4)[:, :2], 40), (torch.zeros(8)[::4], 20), (torch.zeros(()), 4)],
)
def test_a_region_reaches_from_the_first_byte_to_the_last(tensor: Tensor, num_bytes_reached: int) -> None:
    spec = ParameterSpec.of(tensor)
    begin = tensor.data_ptr()
    assert spec.region == Region(HERE, "cpu", begin, begin + num_bytes_reached)
    assert (spec.num_elements, spec.num_bytes) == (tensor.numel(), tensor.nbytes)


def test_what_has_no_memory_has_no_region() -> None:
    meta, empty = ParameterSpec.of(torch.zeros(2, device="meta")), ParameterSpec.of(torch.zeros(2, 0))
    assert (meta.region, meta.is_meta, empty.region, empty.is_meta) == (None, True, None, False)
    assert str(meta) == "float32 [2]" and empty.num_bytes == 0


def test_a_forked_process_has_an_address_space_of_its_own() -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=send_address_space, args=(theirs,))
    process.start()
    found = ours.recv()
    process.join()
    assert found != HERE


def test_a_description_travels() -> None:
    state = Target(policy()).describe()
    assert pickle.loads(pickle.dumps(state)) == state


def test_equal_addresses_of_two_processes_are_two_places() -> None:
    source = {"norm": ParameterSpec.of(torch.zeros(4))}
    region = source["norm"].region
    assert region is not None
    with pytest.raises(WeightSyncError, match="norm of the sampler is in the memory of norm of the policy"):
        check_ownership(source, source, ())
    for other in (region._replace(process="another"), region._replace(device="cuda:0")):
        check_ownership(source, {"norm": source["norm"]._replace(region=other)}, ())


def test_poison_that_arrives_in_another_parameter_of_the_policy_is_found() -> None:
    decoder = policy()
    source = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
    target = Target(decoder)
    target.decoder.layers[0].attention_norm.data = decoder.layers[1].attention_norm.data
    target.begin(1)
    with pytest.raises(WeightSyncError, match="of the policy was overwritten") as caught:
        probe_ownership(source, tensor_digests(source), target, list(source))
    assert (caught.value.check, caught.value.parameter) == (Check.OWNERSHIP, "layers.1.attention_norm")


def test_poison_that_does_not_arrive_is_found_and_named() -> None:
    target = Target(policy())
    names = list(target.describe().parameters)
    target.begin(1)
    target.poison(names)
    check_poisoned(target.describe().parameters, target.digests(names))
    learn(target.decoder)  # all but the last norm, and NaN stays NaN
    with torch.no_grad():
        target.decoder.norm.fill_(1.0)
    with pytest.raises(WeightSyncError, match="norm of the sampler was written, and is as it was") as caught:
        check_poisoned(target.describe().parameters, target.digests(names))
    assert caught.value.check == Check.COVERAGE
