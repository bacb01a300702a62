"""Parameters by the dotted names under which modules own them."""

import functools
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as hooks

from harness.bits.shard_sums import on_host
from harness.recording.recorder import look
from harness.recording.tensors import can_ask_driver, is_engines

Named = list[tuple[str, torch.Tensor]]
Held = tuple[str, Named]
"""Class of a module, and what it holds."""
WRAPPERS = (
    *("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."),
    *("_forward_module.", "_module."),
)
"""What DistributedDataParallel, torch.compile, FSDP, activation checkpointing, Fabric and opacus put before a part."""


class ParameterNames:
    """Gives each parameter one name for as long as the process lives.

    A name is that within the module which owns most of the parameters asked for together; where two modules have
    parameters of the same name, the later ones carry their module's class. Deterministic: it depends on the order of
    the parameters in their optimizers; where optimizers are made after a backward, on their order in its graph.
    """

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        """By id, which is one parameter's for as long as that lives."""
        self._untracked: list[tuple[weakref.ref[torch.Tensor], str]] = []
        self._leaves: list[weakref.ref[torch.Tensor]] = []
        """Tensors without a name that backward has met, in the order of its graphs."""
        self.has_reserved = False
        """Whether several optimizers were made after a backward, for leaves of one graph."""
        self._taken: set[str] = set()
        self._trained: dict[str, weakref.ref[nn.Module]] = {}
        """Outermost modules that own parameters with a name, by the name of their mode."""

    def name(self, parameter: torch.Tensor) -> str | None:
        """The name it has been given; None for one that was never assigned."""
        reference, name = self._names.get(id(parameter), (None, None))
        return name if reference is not None and reference() is parameter else None

    def named(self, parameters: Sequence[torch.Tensor]) -> Named:
        """(name, parameter) of those of these that have a name."""
        names = self._names
        known = [(names.get(id(each)), each) for each in parameters]
        return [(entry[1], each) for entry, each in known if entry is not None and entry[0]() is each]

    def meet(self, tensors: Iterable[Any]) -> None:
        """Note the tensors that accumulate gradients in the graph of these: optimizers may be made for them later."""
        leaves = {id(leaf): leaf for each in self._leaves if (leaf := each()) is not None}
        leaves |= {id(leaf): leaf for leaf in accumulating_tensors(tensors)}
        self._leaves = [weakref.ref(leaf) for leaf in leaves.values() if self.name(leaf) is None]

    def assign(self, parameters: Sequence[torch.Tensor], *, with_leaves: bool = False) -> None:
        """Name those of these parameters that have no name.

        `with_leaves` reserves names for all leaves that backward has met: in which order optimizers are made for them
        must not count. Without parameters, these are weights of an optimizer that is not torch's.
        """
        unnamed = {id(parameter): parameter for parameter in parameters if self.name(parameter) is None}
        if parameters and not unnamed:
            return
        known = self._untracked if with_leaves else []
        reserved = {id(tensor): name for each, name in known if (tensor := each()) is not None}
        leaves = [leaf for each in self._leaves if with_leaves and (leaf := each()) is not None]
        unassigned = {id(leaf): leaf for leaf in leaves if self.name(leaf) is None}
        met = {key: leaf for key, leaf in unassigned.items() if key not in reserved}
        self.has_reserved |= bool(parameters) and not unassigned.keys() <= unnamed.keys()
        together = unnamed if met.keys() <= unnamed.keys() else met | unnamed
        if not together:
            return
        roots = outermost(living_modules())
        if not together.keys() <= (owners := owners_of([*together.values()], roots)).keys():
            roots = outermost(living_modules(is_any=True))
            owners = owners_of([*together.values()], roots)
        for index, (key, parameter) in enumerate(together.items()):
            owner = owners.get(key)
            dotted, prefix = (owner.dotted, _class_name(owner.root)) if owner else (f"parameter{index}", "")
            entry = weakref.ref(parameter), reserved.get(key) or self._free(dotted, prefix)
            if key in unnamed:
                self._names[key] = entry
            else:
                self._untracked.append(entry)
            if owner and all(each() is not owner.root for each in self._trained.values()):
                self._trained[self._free("mode", prefix)] = weakref.ref(owner.root)
        self._observe_untracked(roots)

    def untracked(self) -> Named:
        """(name, tensor) of what modules hold beside that: buffers, frozen weights, averaged and target networks.

        Those that lived when a parameter was assigned last, and live still.
        """
        alive = [(name, tensor) for reference, name in self._untracked if (tensor := reference()) is not None]
        return [(name, tensor) for name, tensor in alive if self.name(tensor) is None]

    def trained(self) -> list[tuple[str, nn.Module]]:
        """(name of its mode, module) of each outermost module that owns parameters with a name."""
        return [(name, root) for name, each in self._trained.items() if (root := each()) is not None]

    def modes(self) -> list[tuple[str, str]]:
        """The mode of each trained module, train or eval, and which of its parts are in the other."""
        return [(name, _mode(root)) for name, root in self.trained()]

    def without_optimizer(self) -> Named:
        """(name, tensor) of the leaves that backward has met and no optimizer holds."""
        met = {id(leaf) for each in self._leaves if (leaf := each()) is not None}
        return [(name, tensor) for name, tensor in self.untracked() if id(tensor) in met]

    def _observe_untracked(self, roots: Sequence[nn.Module]) -> None:
        """Name what has no name yet, in an order that depends on names, shapes and values only."""
        known = {id(tensor) for reference, _ in self._untracked if (tensor := reference()) is not None}
        everything = [(_class_name(root), _held(root)) for root in roots]
        held = [each for each in everything if any(id(tensor) not in known for _, tensor in each[1])]
        for prefix, tensors in _ordered(held, lambda each: self._is_trained(each[1])):
            for dotted, tensor in tensors:
                if id(tensor) not in known and self.name(tensor) is None:
                    known.add(id(tensor))
                    self._untracked.append((weakref.ref(tensor), self._free(dotted, prefix)))

    def _is_trained(self, tensors: Named) -> bool:
        return any(self.name(tensor) is not None for _, tensor in tensors)

    def _free(self, dotted: str, prefix: str) -> str:
        candidates = [dotted, f"{prefix}.{dotted}" if prefix else dotted]
        number = 1
        while candidates[-1] in self._taken:
            number += 1
            candidates.append(f"{prefix}#{number}.{dotted}" if prefix else f"{dotted}#{number}")
        name = next(candidate for candidate in candidates if candidate not in self._taken)
        self._taken.add(name)
        return name


def accumulating_tensors(tensors: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that backward from these gives gradients to, in the order of the graph."""
    nodes = [node for each in tensors if (node := getattr(each, "grad_fn", None)) is not None][::-1]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable
        following = [each for each, _ in node.next_functions[::-1] if each is not None and each not in seen]
        seen.update(following)
        nodes += following


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters of all groups of an optimizer, in order."""
    return [each for group in optimizer.param_groups for each in group["params"]]


class Owner(NamedTuple):
    """What owns a parameter, and under which name."""

    dotted: str
    root: nn.Module


def owners_of(parameters: Sequence[torch.Tensor], roots: Sequence[nn.Module]) -> dict[int, Owner]:
    """The owner of each parameter that these outermost modules own, by its id."""
    wanted = {id(parameter) for parameter in parameters}
    named = {id(root): _named(root, wanted) for root in roots}
    found: dict[int, Owner] = {}
    # The module that owns most of them comes first: an agent before the network that it also holds alone.
    # Of equal ones the choice is by names, never by where objects lie.
    for root in sorted(roots, key=lambda root: (-len(named[id(root)]), _class_name(root), [*named[id(root)].values()])):
        for key, dotted in named[id(root)].items():
            found.setdefault(key, Owner(dotted, root))
    return found


def _mode(root: nn.Module) -> str:
    """Return "train" or "eval", and which parts are in the other mode."""
    others = [name for name, each in root.named_modules() if each.training is not root.training]
    return ("train" if root.training else "eval") + (f", but not {', '.join(others)}" if others else "")


def _held(root: nn.Module) -> Named:
    """(dotted name, tensor) of every parameter and buffer below a module that has memory on the host or a GPU.

    Of an engine whose memory may sleep, nothing on a GPU whose driver does not say whether it does.
    """
    tensors = [*root.named_parameters(), *root.named_buffers()]
    may_sleep = is_engines(root) and not can_ask_driver()
    return [
        (unwrapped(dotted), tensor)
        for dotted, tensor in tensors
        if not tensor.is_meta and not (may_sleep and not on_host(tensor))
    ]


def _ordered(held: list[Held], is_trained: Callable[[Held], bool]) -> Iterator[Held]:
    """Trained modules first, then by class, names, shapes and dtypes; values are digested only of those alike in these.

    Nothing else is read: modules that nobody trains may be large.
    """
    alike: dict[Any, list[Held]] = {}
    for each in held:
        kinds = tuple([f"{dotted} {tuple(tensor.shape)} {tensor.dtype}" for dotted, tensor in each[1]])
        alike.setdefault((not is_trained(each), each[0], kinds), []).append(each)
    for _, group in sorted(alike.items()):
        yield from group if len(group) == 1 else sorted(group, key=_digests)


def _digests(held: Held) -> list[bytes]:
    return [bytes(seen.digested.digest) for seen in look(held[1])]


_noted: dict[int, weakref.ref[nn.Module]] = {}
"""Modules by id, from `note_modules` on."""


def note_modules() -> None:
    """From now on, note each module that is given something to hold, or that is copied or loaded."""

    def note(module: nn.Module, *_: Any) -> None:
        _noted[id(module)] = weakref.ref(module)

    hooks.register_module_parameter_registration_hook(note)
    hooks.register_module_buffer_registration_hook(note)
    hooks.register_module_module_registration_hook(note)
    original = nn.Module.__setstate__

    @functools.wraps(original)
    def set_state(module: nn.Module, state: Any) -> None:
        original(module, state)  # type: ignore[no-untyped-call]
        note(module)

    nn.Module.__setstate__ = set_state  # type: ignore[method-assign]


def living_modules(*, is_any: bool = False) -> list[nn.Module]:
    """The modules that were noted; where none was, and if `is_any`, every module there is, which takes longer.

    By type, since isinstance asks proxies what they stand for, and that may do anything.
    """
    if is_any or not _noted:
        return [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    living = {key: module for key, each in list(_noted.items()) if (module := each()) is not None}
    for key in _noted.keys() - living.keys():
        del _noted[key]
    return [*living.values()]


def outermost(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Those that are no other's child."""
    modules = list(modules)
    children = {id(child) for module in modules for child in module._modules.values() if child is not None}
    return [module for module in modules if id(module) not in children]


def unwrapped(dotted: str) -> str:
    """A name without the parts that wrappers add."""
    for wrapper in WRAPPERS:
        dotted = dotted.replace(f".{wrapper}", ".").removeprefix(wrapper)
    return dotted


def _named(root: nn.Module, wanted: set[int]) -> dict[int, str]:
    """Each wanted parameter below a module by its id; of a tied one the first name."""
    return {
        id(parameter): unwrapped(dotted) for dotted, parameter in root.named_parameters() if id(parameter) in wanted
    }


def _class_name(root: nn.Module) -> str:
    """The class of a module, or of the one that it wraps."""
    inner = [child for name, child in root._modules.items() if f"{name}." in WRAPPERS and child is not None]
    return _class_name(inner[0]) if len(root._modules) == 1 and inner else type(root).__name__
