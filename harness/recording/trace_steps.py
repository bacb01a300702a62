"""Steps of the trace of a program that knows nothing of it: when one begins, what joins it, and when it ends."""

from collections.abc import Callable, Mapping, Sequence

from torch.optim import Optimizer

from harness.recording.op_mode import OpMode
from harness.recording.optimizer_steps import JoinedSteps, OptimizerNames
from harness.recording.process import ProcessLog
from harness.recording.random_states import RandomStates, State
from harness.recording.recorder import Observation, Recorder
from harness.recording.tensors import Digested
from harness.trace.chain import Scope
from harness.trace.values import Float


class TraceSteps:
    """Begins and ends steps of the trace, and the record of a step's operations with them.

    `guard` calls what it is given as the hooks are called: a mistake ends the recording, never the program.
    """

    def __init__(
        self,
        log: ProcessLog,
        recorder: Recorder,
        optimizers: OptimizerNames,
        guard: Callable[[Callable[[], None]], None],
    ) -> None:
        self._log, self._recorder, self._optimizers, self._guard = log, recorder, optimizers, guard
        self.random = RandomStates()
        self.loss: Callable[[], Float | None] | None = None
        """Returns that of the last backward in this step, where it is one number."""
        self.is_within = False
        """Whether a backward or an optimizer's step has begun since the last step of the trace ended."""
        self.is_over = False
        """Whether the step of the trace ends with what happens now."""
        self.operations: OpMode | None = None
        """While the operations of a step are recorded."""
        self._step_of_operations = 0
        self._stopped: OpMode | None = None
        """What has recorded operations, as long as it cannot be taken off."""
        self._step = 0
        self.joined = JoinedSteps()
        self._is_finishing = False
        self._states: dict[str, State] | None = None
        """Of generators that were used, as a step left them that waits for other optimizers."""

    def begin(self) -> bool:
        """Begin a step, if none has begun; says whether it has."""
        if self._recorder.step is not None:
            return False
        self._recorder.begin_step(self._step)
        states, self._states = self._states, None
        self.record_states(self.random.changed() if states is None else states)
        self._start_operations(self._step)
        return True

    def meet(self, optimizer: Optimizer) -> None:
        """Name an optimizer that has been made, in whatever thread."""
        self._optimizers.see(optimizer)
        self.joined.meet(is_within_step=self.is_within)

    def record_states(self, states: Mapping[str, State]) -> None:
        """Record states of random-number generators, by name."""
        for name, state in states.items():
            self._recorder.record_seen("rollout", Observation(name, Digested("state", (), *state), Scope.CONTEXT))

    def end_or_wait(
        self, stepped: Sequence[Optimizer], leaves_gradients: Callable[[Sequence[Optimizer]], bool]
    ) -> None:
        """Note that optimizers have stepped: the step of the trace is over, unless others are waited for.

        `leaves_gradients` says whether any of these optimizers has gradients that it has not applied.
        """

        def others_follow() -> bool:
            optimizers = self._optimizers.living()
            return leaves_gradients([each for each in optimizers if not self.joined.has(self._optimizers.see(each))])

        self.is_over = not self.joined.waits([self._optimizers.see(each) for each in stepped], others_follow)
        if not self.is_over:
            self._states = {**(self._states or {}), **self.random.changed()}
            self._start_operations(self._step + 1)  # of a step that has begun, if no other optimizer follows
            self.in_phase("forward")

    def join(self, optimizer: Optimizer) -> None:
        """Before an optimizer steps, end the step of the trace that waits, unless this optimizer joins it."""
        was_waiting = self.joined.is_waiting
        if not self.joined.join(self._optimizers.see(optimizer)) and was_waiting:
            self.is_over = True
            self.finish()

    def settle(self) -> None:
        """Before anything else happens: end the step of the trace that waits for other optimizers."""
        if self._is_finishing:  # the values of the curve that a step ends with
            return
        was_waiting = self.joined.is_waiting
        self.joined.end()
        if was_waiting:
            self.is_over = True
            self.finish()

    def finish(self) -> None:
        """End the step of the trace, if it is over, and begin the next."""
        if self.is_over:
            if self._step_of_operations == self._step:
                self.stop_operations()
            self._guard(self._finish)

    def _finish(self) -> None:
        self.is_within = self.is_over = False
        loss, self.loss = self.loss, None
        self._is_finishing = True
        self._recorder.end_step(**({} if loss is None else {"loss": loss}))
        self._is_finishing = False
        self._step += 1
        if self._log.is_recording:
            self.begin()

    # ---------------------------------------------------------------------------------------------------- operations

    def in_phase(self, phase: str) -> None:
        """Operations are of this phase from now on."""
        if self.operations is not None:
            self.operations.phase = phase

    def stop_operations(self) -> None:
        """Record no operations any more."""
        if self.operations is not None:
            self.operations.stop()
            self.operations, self._stopped = None, self.operations

    def take_off(self) -> None:
        """Take off what has recorded operations, if that was not possible yet."""
        if self._stopped is not None and self._stopped.leave():
            self._stopped = None

    def _start_operations(self, step: int) -> None:
        if step == self._log.orders.op_step and self.operations is None:
            self.operations, self._step_of_operations = self._log.operations(step), step
            self.operations.start()
