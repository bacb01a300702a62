"""Program of a child of `children.Children`: `python -P child_main.py FD STACK_FILE`.

Until its parent has sent it its sys.path it can import the standard library only. It then calls the functions that it
is sent, one after the other, until it is ended.
"""

import faulthandler
import importlib.util
import os
import pickle
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

STACK_SIGNAL = signal.SIGRTMAX - 3
"""Has a child write its own Python stacks; a signal that hardly any program uses."""


def call(modules: list[tuple[str, str]], payload: bytes) -> object:
    """Import `modules`, each by name and file, and call what is in the payload."""
    for name, path in modules:
        load(name, path)
    function, args, kwargs = pickle.loads(payload)
    return function(*args, **kwargs)


def load(name: str, path: str) -> None:
    """Import a module; from the file `path` where nothing of that name, or a different file, would be found."""
    if name in sys.modules:
        return
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a parent package that does not exist outside pytest
        spec = None
    if not path or (spec and spec.origin and os.path.exists(spec.origin) and os.path.samefile(spec.origin, path)):
        importlib.import_module(name)
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, path
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def answer_to(order: bytes) -> bytes:
    """Carry out an order; return its result or its failure, pickled."""
    try:
        value = call(*pickle.loads(order))
        try:
            return pickle.dumps(("ok", value, ""))
        except Exception as error:  # pickle raises what it likes
            raise TypeError(f"its result cannot be pickled: {type(value).__name__}: {error}") from error
    except BaseException as error:  # a child outlives whatever is raised, SystemExit and pytest's outcomes too
        outcomes = sys.modules.get("_pytest.outcomes")
        is_skip = outcomes is not None and isinstance(error, outcomes.Skipped)
        what = str(error) if is_skip else "".join(traceback.format_exception_only(error)).strip()
        text = "".join(traceback.format_exception(type(error), error, _below_this_file(error.__traceback__)))
        return pickle.dumps(("skipped" if is_skip else "failed", what, text))


def _below_this_file(tb: TracebackType | None) -> TracebackType | None:
    """The traceback without our own frames at its top; whole where there are no others."""
    rest = tb
    while rest is not None and rest.tb_frame.f_code.co_filename == __file__:
        rest = rest.tb_next
    return rest or tb


def main(number: str, stack_path: str) -> None:
    """Take the connection over, make sure of dying with the parent, and serve it."""
    file = open(f"{stack_path}.new", "w", encoding="utf-8")  # noqa: SIM115  as long as the process lives
    faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)
    os.rename(f"{stack_path}.new", stack_path)  # from here on it may be sent the signal
    connection: Connection[Any, Any] = Connection(int(number))
    os.set_inheritable(connection.fileno(), False)
    sys.path[:] = pickle.loads(connection.recv_bytes())
    from harness.process.supervisor import syscalls

    syscalls.die_with_parent()
    while True:
        try:
            order = connection.recv_bytes()
        except EOFError:  # torch aborts now and then on its way out, after everything is done
            os._exit(0)
        answer = answer_to(order)
        sys.stdout.flush()  # so that the parent reads what was printed before the answer
        sys.stderr.flush()
        connection.send_bytes(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
