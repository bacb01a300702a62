"""An engine of vLLM in a process of its own (AsyncLLM), around a copy of the decoder.

    the caller's thread                the loop's thread                  the engine's process
    add, rank ──waiting──┐
    step ──flush─────────┴────────────▶ a task for each request ────────▶ scheduler, passes
         ◀─── queue of what is drawn ── (cancelled by abort)    ◀────────
    ask ──────────────────────────────▶ collective_rpc ─────────────────▶ EngineExtension, between passes

The engine computes on while the caller looks at what was drawn. It ends with `close`, with the last reference to the
engine, and with the trainer's process, however that ends (`plugin.end_with_trainer`).
"""

import asyncio
import pickle
import tempfile
import threading
import weakref
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

from harness.bits.tensor_digests import weights_digest
from rlcore.errors import RlcoreError, SamplerError
from rlcore.models.decoder import Decoder
from rlcore.samplers.local_target import FencedTarget
from rlcore.samplers.vllm.engine import EngineSettings, Report, arguments, refusals, write_model
from rlcore.samplers.vllm.exchange import Drawn, RemoteExchange
from rlcore.samplers.vllm.plugin import check_entry_point, register_model, starting
from rlcore.samplers.vllm.versions import GIVEN, check_device, installed_version, isolated
from rlcore.weights.remote import RemoteTarget

EXTENSION = "rlcore.samplers.vllm.extension.EngineExtension"
CHECK_EVERY_S = 0.5
"""How often a caller that waits looks whether the engine still runs."""
Result = TypeVar("Result")


class ProcessEngine(RemoteExchange):
    """vLLM's engine in a child process. It computes at the level that its weight target was last used at."""

    def __init__(self, llm: Any, decoder: Decoder, settings: EngineSettings) -> None:
        """Wrap an AsyncLLM; `ProcessEngine.start` builds one."""
        super().__init__(decoder.config, max_length=settings.max_length, concurrency=settings.concurrency)
        self.settings = settings
        self._llm, self._loop = llm, asyncio.new_event_loop()
        self._waiting: list[tuple[int, list[int], Any]] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of the loop's thread
        self._is_paused = False
        self._wanted: set[str] = set()  # of the caller's thread
        self._drawn: SimpleQueue[Drawn | BaseException] = SimpleQueue()
        thread = threading.Thread(target=self._loop.run_forever, name="rlcore-vllm", daemon=True)
        thread.start()
        self.close = weakref.finalize(self, _close, llm, self._loop, thread)
        """End the engine's process; nothing may be asked of it afterwards."""

    @classmethod
    def start(cls, decoder: Decoder, settings: EngineSettings, report: Report = lambda line: None) -> "ProcessEngine":
        """Start an engine with a copy of the decoder's weights; `report` receives a line before what takes seconds.

        Raises InvalidValueError where vLLM cannot be used here, or not with these settings, and SamplerError where the
        process does not start.
        """
        number = installed_version()
        check_entry_point()
        began = perf_counter()
        report(f"sampler: loading vLLM {number}")
        with isolated(), tempfile.TemporaryDirectory(prefix="rlcore-vllm-") as directory:
            check_device(str(decoder.embedding.device))
            from vllm.v1.engine.async_llm import AsyncLLM

            register_model()
            write_model(decoder, Path(directory))
            report(f"sampler: imported in {perf_counter() - began:.1f} s, starting the engine's process")
            with refusals():
                config = arguments(directory, decoder, settings, worker_extension_cls=EXTENSION).create_engine_config()
            try:
                # A recorder of processes may insist on what it set for the level.
                with starting({"VLLM_BATCH_INVARIANT": GIVEN["VLLM_BATCH_INVARIANT"]}):
                    llm = AsyncLLM.from_vllm_config(config, disable_log_stats=True)
            except RuntimeError as error:
                raise SamplerError(
                    f"the engine's process ended while it started: {error}",
                    remedy="correct what its own lines above name; sampler.engine=in_process shows it in this process",
                ) from error
            engine = cls(llm, decoder, settings)
        parameters = {name: parameter.detach() for name, parameter in decoder.named_parameters()}
        first = RemoteTarget(engine.ask)
        first.begin(0)
        first.write(parameters.items())
        first.commit(weights_digest(parameters))
        report(f"sampler: engine ready after {perf_counter() - began:.1f} s, {settings.size}")
        return engine

    def build_target(self) -> FencedTarget:
        """As `Exchange.build_target`."""
        from rlcore.samplers.vllm.process_target import ProcessTarget

        return ProcessTarget(self)

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the engine."""
        return [process.pid for process in self._llm.engine_core.resources.engine_manager.processes]

    # ---------------------------------------------------------------------------------------------- the caller's thread

    def ask(self, method: str, *given: Any) -> Any:
        """As `RemoteExchange.ask`; raises SamplerError if the engine has ended."""
        message = pickle.dumps((method, *given), pickle.HIGHEST_PROTOCOL)
        (reply,) = self._run(self._llm.collective_rpc("rlcore_answer", args=(message,)))
        is_error, answer = pickle.loads(reply)
        if is_error:
            assert isinstance(answer, RlcoreError)
            raise answer
        return answer

    def step(self) -> list[Drawn]:
        """As `Exchange.step`: wait until something is drawn. Raises SamplerError if the engine has ended."""
        self._flush()
        found: list[Drawn] = []
        while not found:
            try:
                each = self._drawn.get(timeout=CHECK_EVERY_S)
            except Empty:
                self._check_alive()
                continue
            while True:
                if isinstance(each, BaseException):
                    raise self._lost() from each
                if each.request_id in self._wanted:
                    found.append(each)
                    self._wanted -= {each.request_id} if each.is_finished else set()
                try:
                    each = self._drawn.get_nowait()
                except Empty:
                    break
        return found

    def abort(self, request_ids: Sequence[str]) -> None:
        """As `Exchange.abort`; what the engine has drawn for them meanwhile is dropped."""
        self._wanted -= set(request_ids)
        self._waiting = [each for each in self._waiting if str(each[0]) not in set(request_ids)]
        self._loop.call_soon_threadsafe(self._cancel, tuple(request_ids))

    def preempt(self) -> None:
        """As `Exchange.preempt`."""
        self._run(self._llm.reset_prefix_cache(reset_running_requests=True))

    def reset_cache(self) -> bool:
        """As `Exchange.reset_cache`."""
        return bool(self._run(self._after_aborts(self._llm.reset_prefix_cache())))

    def clear_pages(self) -> None:
        """As `Exchange.clear_pages`."""
        self.reset_cache()
        self.ask("clear_pages")

    def pause(self) -> None:
        """As `RemoteExchange.pause`."""
        if self._is_paused:
            return
        self._is_paused = True
        self._run(self._after_aborts(self._llm.pause_generation(mode="keep", clear_cache=False)))

    def resume(self) -> None:
        """As `RemoteExchange.resume`."""
        if self._is_paused:
            self._run(self._llm.resume_generation())
            self._is_paused = False

    def _queue(self, number: int, prompt: list[int], wanted: Any) -> None:
        self._waiting.append((number, prompt, wanted))
        self._wanted.add(str(number))

    def _flush(self) -> None:
        """Hand over what was queued, all at once: each switch of threads costs as much as a small pass."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._loop.call_soon_threadsafe(self._start, waiting)

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Return the result of a coroutine of the loop's thread; raises SamplerError if the engine has ended."""
        future: Future[Result] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while True:
            try:
                return future.result(CHECK_EVERY_S)
            except TimeoutError:
                self._check_alive()
            except Exception as error:  # raised again, unless the engine's end explains it
                self._check_alive(error)
                raise

    def _check_alive(self, error: BaseException | None = None) -> None:
        if not self.close.alive or self._llm.errored:
            raise self._lost() from error

    def _lost(self) -> SamplerError:
        return SamplerError(
            "the engine's process has ended",
            remedy="resume the run from its last checkpoint; the kernel's log says whether memory was short",
        )

    # ------------------------------------------------------------------------------------------------ the loop's thread

    def _start(self, waiting: Sequence[tuple[int, list[int], Any]]) -> None:
        for number, prompt, wanted in waiting:
            self._tasks[str(number)] = self._loop.create_task(self._serve(number, prompt, wanted))

    async def _serve(self, number: int, prompt: list[int], wanted: Any) -> None:
        """Pass on what is drawn for a request; cancelling it aborts the request."""
        given = {"type": "token", "prompt_token_ids": prompt}
        try:
            async for output in self._llm.generate(given, wanted, str(number), priority=number):
                self._drawn.put(Drawn.of(output))
        except Exception as error:  # it is raised to the caller of `step`
            self._drawn.put(error)
        finally:
            del self._tasks[str(number)]

    def _cancel(self, request_ids: Sequence[str]) -> None:
        for each in request_ids:
            if task := self._tasks.get(each):
                task.cancel()

    async def _after_aborts(self, then: Coroutine[Any, Any, Result]) -> Result:
        """Wait until requests that were aborted have left the engine."""
        cancelled = [task for task in self._tasks.values() if task.cancelling()]
        await asyncio.gather(*cancelled, return_exceptions=True)
        return await then


def _close(llm: Any, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """End the loop's tasks, which would report a lost engine, then its process, then the loop."""
    if threading.current_thread() is thread:  # the collector runs where it likes; the loop cannot wait for itself
        threading.Thread(target=_close, args=(llm, loop, thread)).start()
        return

    async def end() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result()
    sockets = llm.engine_core.resources.ctx
    llm.shutdown(timeout=0.0)  # the process has nothing to save
    llm.shutdown = lambda: None  # its __del__ calls it again, perhaps while modules are being taken apart
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    sockets.destroy(linger=0)  # vLLM leaves it to the collector
