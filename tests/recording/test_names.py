"""Parameters get the names that their modules give them, and each its own."""

import copy
import gc
import pickle
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import nn

from harness.recording import names
from harness.recording.names import Named, ParameterNames, unwrapped
from harness.recording.recorder import Observation, look
from tests.recording.counted_gpu import pretend_gpu


def names_of(*modules_or_parameters: nn.Module | torch.Tensor) -> list[str | None]:
    names = ParameterNames()
    parameters = [
        parameter
        for each in modules_or_parameters
        for parameter in (each.parameters() if isinstance(each, nn.Module) else [each])
    ]
    names.assign(parameters)
    return [names.name(parameter) for parameter in parameters]


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(2, 3)
        self.critic = nn.Sequential(nn.Linear(2, 1))


def test_dotted_names_of_the_outermost_module() -> None:
    agent = Agent()
    assert names_of(agent) == ["actor.weight", "actor.bias", "critic.0.weight", "critic.0.bias"]
    assert names_of(agent.critic) == ["critic.0.weight", "critic.0.bias"]


def test_a_parameter_of_no_module_has_its_place() -> None:
    assert names_of(nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))) == ["parameter0", "parameter1"]


@pytest.mark.full
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 2, 0]])
def test_parameters_of_optimizers_that_are_made_after_backward_have_the_order_of_its_graph(order: list[int]) -> None:
    free, owned = [nn.Parameter(torch.ones(2)) for _ in range(3)], [nn.Linear(2, 1) for _ in range(3)]
    pairs = [[free[index], owned[index].weight] for index in range(3)]
    names = ParameterNames()
    loss = sum((layer(parameter) for layer, parameter in zip(owned, free, strict=True)), torch.zeros(1))
    names.meet([loss])
    for index in order:
        names.assign(pairs[index], with_leaves=True)
    found = [[names.name(each) for each in pair] for pair in pairs]
    assert [weight for _, weight in found] == ["weight", "Linear.weight", "Linear#2.weight"]
    assert found[0][0] != found[1][0]
    assert [parameter for parameter, _ in found] == sorted(parameter or "" for parameter, _ in found)


def test_leaves_that_no_optimizer_holds_have_names() -> None:
    names, model = ParameterNames(), nn.Linear(2, 1)
    names.meet([model(torch.ones(2))])
    names.assign([], with_leaves=True)
    assert {name for name, _ in names.without_optimizer()} == {"weight", "bias"}
    assert not names.has_reserved


def test_the_mode_of_a_module_and_of_parts_that_are_in_another() -> None:
    names, model = ParameterNames(), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    names.assign([*model.parameters()])
    assert names.modes() == [("mode", "train")]
    model[1].eval()
    assert names.modes() == [("mode", "train, but not 1")]
    assert (model.eval(), names.modes()) == (model, [("mode", "eval")])


def test_modules_are_noted_when_they_are_made_copied_or_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in ("_global_parameter_registration_hooks", "_global_buffer_registration_hooks"):
        monkeypatch.setattr(torch.nn.modules.module, each, OrderedDict())
    monkeypatch.setattr(torch.nn.modules.module, "_global_module_registration_hooks", OrderedDict())
    monkeypatch.setattr(nn.Module, "__setstate__", nn.Module.__setstate__)
    monkeypatch.setattr(names, "_noted", {})
    names.note_modules()
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("all objects are looked through"))
    made = nn.Sequential(nn.Linear(2, 2))
    copied, loaded = copy.deepcopy(made), pickle.loads(pickle.dumps(made))
    for module in (made, copied, loaded):
        assert names_of(module) == ["0.weight", "0.bias"]
    del copied, module
    assert sum(type(each) is nn.Sequential for each in names.living_modules()) == 2


def test_one_optimizer_of_all_leaves_names_them_in_its_own_order() -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    for loss in (first @ second, second @ first):
        names = ParameterNames()
        names.meet([loss])
        names.assign([second, first], with_leaves=True)
        assert [names.name(each) for each in (second, first)] == ["parameter0", "parameter1"]


def test_two_modules_with_the_same_names_are_told_apart_by_class_then_number() -> None:
    first, second, third = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    assert names_of(first, second, third) == [
        *("weight", "bias"),
        *("Linear.weight", "Linear.bias"),
        *("Linear#2.weight", "Linear#2.bias"),
    ]


def test_names_stay_when_more_is_named() -> None:
    names, model = ParameterNames(), nn.Linear(2, 2)
    names.assign([model.weight])
    holder = nn.Sequential(model)
    names.assign(list(holder.parameters()))
    assert [names.name(each) for each in holder.parameters()] == ["weight", "0.bias"]
    assert names.name(torch.ones(1)) is None


def test_a_deep_copy_is_found_though_no_registration_told_of_it() -> None:
    copied = copy.deepcopy(Agent())
    assert names_of(copied)[0] == "actor.weight"


def test_wrappers_leave_no_mark() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    wrapped = Wrapper(Agent())
    assert names_of(wrapped)[0] == "actor.weight"
    assert unwrapped("module._orig_mod.layers.0._checkpoint_wrapped_module.weight") == "layers.0.weight"
    assert unwrapped("submodule.weight") == "submodule.weight"


def test_a_tied_parameter_has_its_first_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    assert names_of(model) == ["0.weight"]


def test_naming_keeps_nothing_alive() -> None:
    names, model = ParameterNames(), nn.Linear(2, 2)
    gone = weakref.ref(model.weight)
    names.assign(list(model.parameters()))
    del model
    gc.collect()
    assert gone() is None


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)


def test_bystanders_are_what_modules_hold_beside_the_parameters() -> None:
    names, model, average = ParameterNames(), Normed(), Normed()
    names.assign(list(model.parameters()))
    found = {name for name, tensor in names.untracked() if any(tensor is t for t in tensors_of(model, average))}
    assert found == {
        *("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"),
        *(f"Normed.norm.{name}" for name, _ in [*model.norm.named_parameters(), *model.norm.named_buffers()]),
    }
    del average
    gc.collect()
    assert not [name for name, _ in names.untracked() if name.startswith("Normed.norm")]


def tensors_of(*modules: nn.Module) -> list[torch.Tensor]:
    return [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]


def test_values_are_read_only_of_modules_that_are_alike_in_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen weights of a large model are not digested to be named."""
    trained, frozen, alike = nn.Linear(3, 2), nn.Linear(5, 2), [nn.Linear(7, 2) for _ in range(2)]
    read: list[int] = []

    def counted(tensors: Named) -> list[Observation]:
        read.append(tensors[0][1].shape[1])
        return look(tensors)

    monkeypatch.setattr(names, "living_modules", lambda: [trained, frozen, *alike])
    monkeypatch.setattr(names, "look", counted)
    known = ParameterNames()
    known.assign([*trained.parameters()])
    assert read == [7, 7]
    assert len(known.untracked()) == 6


def test_an_engine_whose_memory_may_sleep_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the driver says what is mapped, each value is asked for when it is read."""
    trained, engine = nn.Linear(3, 2), type("Qwen3ForCausalLM", (nn.Linear,), {"__module__": "vllm.models.qwen3"})(5, 2)
    monkeypatch.setattr(names, "living_modules", lambda: [trained, engine])
    counts = {}
    for case, driver in (("host", False), ("no driver", False), ("driver", True)):
        if case == "no driver":
            pretend_gpu(monkeypatch)
        monkeypatch.setattr(names, "can_ask_driver", lambda driver=driver: driver)
        known = ParameterNames()
        known.assign([*trained.parameters()])
        counts[case] = len(known.untracked())
    assert counts == {"host": 2, "no driver": 0, "driver": 2}
