"""The pretended driver, asked through the real pynvml by a child process that was started with it."""

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from harness.machine.gpu_health import GpuFault, GpuProcess, MachineHealth
from harness.machine.inventory import Inventory
from tests.support.nvml_stub.build import stub_env

_ROOT = Path(__file__).parents[3]


class Shown(Protocol):
    """A machine that a pretended driver can show."""

    def write(self, file: Path) -> None:
        """Put it in `file`."""


class Driver:
    """A child process whose NVML shows what `file` says; the methods are those of `harness.machine.gpus`.

    An exception in the child is raised here; a child that died raises EOFError or BrokenPipeError.
    """

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self._start(stub_env(library, file))

    def _start(self, stub: Mapping[str, str]) -> None:
        env = {**os.environ, **stub, "PYTHONPATH": str(_ROOT)}
        command = [sys.executable, "-m", "tests.support.nvml_stub.child"]
        self._child = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def show(self, machine: Shown) -> None:
        """From the next question on, the driver shows `machine`."""
        machine.write(self._file)

    def read_inventory(
        self,
        machine: Shown,
        selection: str = "auto",
        environ: Mapping[str, str] | None = None,
        *,
        claims: bool = False,
    ) -> Inventory:
        """Shows `machine`; its inventory, with GPUs claimed for the length of the call where `claims` says so."""
        self.show(machine)
        answer = self._ask("inventory", selection, dict(environ or {}), claims)
        assert isinstance(answer, Inventory)
        return answer

    def read_gpu_health(self, machine: Shown) -> MachineHealth:
        """Shows `machine`; what `doctor` reads of it."""
        self.show(machine)
        answer = self._ask("health")
        assert isinstance(answer, MachineHealth)
        return answer

    def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
        answer = self._ask("meter", "used_memory_bytes", tuple(gpu_ids))
        assert isinstance(answer, dict)
        return answer

    def processes_on(self, gpu_id: str) -> tuple[GpuProcess, ...]:
        answer = self._ask("meter", "processes_on", gpu_id)
        assert isinstance(answer, tuple)
        return answer

    def fault(self, gpu_id: str) -> GpuFault | None:
        answer = self._ask("meter", "fault", gpu_id)
        assert answer is None or isinstance(answer, GpuFault)
        return answer

    def new_xids(self, gpu_id: str) -> tuple[int, ...]:
        answer = self._ask("meter", "new_xids", gpu_id)
        assert isinstance(answer, tuple)
        return answer

    def memory_by_pid(self, gpu_id: str) -> dict[int, int | None]:
        answer = self._ask("meter", "memory_by_pid", gpu_id)
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        """End the child."""
        self._child.communicate(timeout=60)

    def _ask(self, *question: object) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        pickle.dump(question, self._child.stdin)
        self._child.stdin.flush()
        answer = pickle.load(self._child.stdout)
        if isinstance(answer, Exception):
            raise answer
        return answer
