"""A GPU that is not there: tensors without memory on "cuda", and a count of the operations that are launched."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = frozenset({"_local_scalar_dense", "nonzero", "is_nonzero", "item", "equal", "masked_select"})
"""Operations whose result the host needs before it goes on."""


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @property
    def num_waits(self) -> int:
        """How often the host would wait for a GPU."""
        return sum(self.names[name] for name in WAITS)


@contextmanager
def fake_gpu() -> Iterator[Launches]:
    """Compute without memory inside, on any device."""
    with FakeTensorMode(), Launches() as launches:
        yield launches
