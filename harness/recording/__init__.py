"""The recorder: in the process of the program that is recorded, called by it or injected.

A program that names its steps and values itself:

    import torch
    from harness.recording import open_recorder

    recorder = open_recorder()  # records under `rlharness trace` and `rlharness replay`, and does nothing elsewhere
    for step in range(2):
        recorder.begin_step(step)
        recorder.record("loss", "loss", torch.tensor(0.5))
        recorder.end_step(loss=0.5)
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    import torch

    from harness.recording.process import Place
    from harness.recording.recorder import NullRecorder, Recorder


def open_recorder(place: "Place | None" = None) -> "Recorder | NullRecorder":
    """The recorder of this process, for a program that names its steps and phases itself.

    The hooks that record programs which do not are at rest from then on. `place` is that of this process among those
    that record together, where neither torch.distributed nor a launcher has given it one.
    """
    import torch  # noqa: F401  # first: the recording begins with it

    from harness.recording import automatic

    return automatic.open_recorder(place)


def watch(name: str, value: object) -> None:
    """Record a value that no module and no optimizer holds, such as an average of weights in a list.

        average = [parameter.detach().clone() for parameter in model.parameters()]
        watch("average", average)

    `value` is a tensor, or a list, tuple or dictionary of tensors, arrays, numbers and texts. Whatever it holds before
    an optimizer's step is recorded in that step, if it has changed, as `forward watch.average.0`. A later value of the
    same name replaces it. Without effect where nothing is recorded, or where the program calls a recorder itself.
    Raises TypeError for another value.
    """
    import torch

    if not isinstance(value, torch.Tensor | list | tuple | dict):
        raise TypeError(f"watch({name!r}) of a {type(value).__name__}: a tensor, list, tuple or dictionary is needed")
    from harness.recording import automatic

    automatic.watch(name, value)


def watch_replicas(
    parameters: "Iterable[torch.Tensor]" = (),
    *,
    every: int = 10,
    directory: "str | os.PathLike[str]" = ".",
    ranks: "Sequence[int] | None" = None,
    timeout_s: float | None = None,
) -> None:
    """Have ranks that must agree compare digests every N optimizer steps, without a recording.

    Replicas of DistributedDataParallel and of DTensors (fully_shard) are found without being named; `parameters` are
    further ones, the same on all `ranks`, by default on every rank. `directory` gets `sentinel/` with a bundle for each
    finding. `timeout_s` is how long a rank waits for the others; by default as long as the program's process group.
    Under `rlharness trace --sentinel` the sentinel runs already: its cadence and directory stay. Raises UsageError for
    a cadence below 1, or parameters before `init_process_group`.
    """
    from harness.recording.sentinel import declare_replicas

    declare_replicas(parameters, every=every, directory=directory, ranks=ranks, timeout_s=timeout_s)
