"""A client of inference servers: asks until one of them answers."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from typing import Any

import httpx2

from rlcore.asynchronous.settings import ClientSection
from rlcore.errors import InvalidValueError, WorkerError

MOST_DEATHS = 2
"""How often a server may end while it works on one request alone."""


class Client:
    """Connections to the servers of one model."""

    def __init__(self, section: ClientSection, say: Callable[[str], None]) -> None:
        self._urls, self._say = [url.rstrip("/") for url in section.base_url], say
        unlimited = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        key, self._timeout_s = os.environ.get(section.api_key_var), section.timeout
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.AsyncClient(timeout=self._timeout_s, limits=unlimited, headers=headers)
        self._is_unchecked = section.skip_model_check
        self._alone, self._is_waiting = asyncio.Lock(), False
        self.num_waiting = 0
        """Requests that have no answer yet."""

    async def check(self) -> None:
        """Check that each address that answers is of inference as `rlcore.asynchronous.infer` has it."""
        for url in () if self._is_unchecked else self._urls:
            with contextlib.suppress(httpx2.TransportError):
                found = await self._http.get(f"{url}/models")
                if "places" not in found.text:
                    raise InvalidValueError(
                        f"{url} is a server that serves no versions of weights",
                        legal="the address of rlcore grpo-infer, with /v1",
                        remedy="start it there, or change client.base_url",
                    )

    async def close(self) -> None:
        """Hang up."""
        await self._http.aclose()

    async def complete(self, group: int, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Return an answer; None for a request that has ended the server, twice while it was asked for alone."""
        self.num_waiting += 1
        try:
            num_deaths = 0
            for attempt in itertools.count():
                url = self._urls[(group + attempt) % len(self._urls)]
                try:
                    if num_deaths < MOST_DEATHS:
                        return await self._ask(url, asked)
                    async with self._alone:
                        return await self._ask(url, asked)
                except httpx2.ConnectError:
                    if not self._is_waiting:
                        self._say(f"waits for inference at {url}")
                    self._is_waiting = True
                    await asyncio.sleep(0.1)
                except httpx2.TimeoutException as error:  # what becomes of a group must not follow from a clock
                    what = f"{url} has not answered a request of group {group} within {self._timeout_s:g} s"
                    raise WorkerError(what, role="infer", remedy="a larger client.timeout, or look after it") from error
                except httpx2.TransportError:  # a server that has ended
                    num_deaths += 1
                    if num_deaths == 2 * MOST_DEATHS:
                        self._say(f"group {group}: a request has ended {url} {num_deaths} times, and is given up")
                        return None
            raise AssertionError
        finally:
            self.num_waiting -= 1

    async def _ask(self, url: str, asked: dict[str, Any]) -> dict[str, Any]:
        answer = await self._http.post(f"{url}/completions", json=asked)
        if answer.status_code != 200:
            said = answer.json().get("error", {}) if answer.text.startswith("{") else {"message": answer.text[:300]}
            raise InvalidValueError(
                f"{url} answers {answer.status_code}: {said.get('message', said)}",
                legal=said.get("legal", ""),
                remedy=said.get("remedy", ""),
            )
        found: dict[str, Any] = answer.json()
        return found
