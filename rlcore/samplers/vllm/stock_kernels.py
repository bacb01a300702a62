"""What vLLM's own models need to be loaded and written here."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def leave_weights_unpacked() -> Iterator[None]:
    """Build a model whose weights keep their own layout inside.

    On a CPU vLLM packs them for oneDNN while it builds the model, and leaves empty parameters, which no loader can
    write again.
    """
    from vllm import _custom_ops

    found = getattr(_custom_ops, "_supports_onednn", None)
    if found is None:  # versions for GPUs
        yield
        return
    _custom_ops._supports_onednn = False
    try:
        yield
    finally:
        _custom_ops._supports_onednn = found
