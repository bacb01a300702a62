"""An environment of verifiers 0.x in the shape of rlcore: shown on the page of environments."""

import asyncio
import inspect


class FromVerifiers:
    """Environment with `env_response(messages, state)` and `is_completed(messages, state)`, async or not."""

    def __init__(self, environment):
        self._environment = environment

    def reset(self, *, seed, options):
        self._messages = [{"role": "user", "content": options["prompt"]}]
        self._state = {"turn": 0, "responses": [], "info": {}, "answer": "", **options}
        return "", {}

    def step(self, text):
        self._messages.append({"role": "assistant", "content": text})
        self._state["turn"] += 1
        replies = []
        if not self._ask("is_completed"):
            found = self._ask("env_response")
            replies, self._state = found if isinstance(found, tuple) else (found, self._state)
            self._messages += replies
        return "\n".join(each["content"] for each in replies), 0.0, bool(self._ask("is_completed")), False, {}

    def _ask(self, name):
        found = getattr(self._environment, name)(self._messages, self._state)
        return asyncio.run(found) if inspect.isawaitable(found) else found
