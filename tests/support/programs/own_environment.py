"""A reward, a tool and an environment of a user's own: shown on the page of environments."""

import random
import urllib.request


def is_short(completions, environment_reward, **columns):
    """A reward in TRL's shape: one number a completion. `environment_reward` has the environment's own."""
    return [reward - 0.001 * len(text) for text, reward in zip(completions, environment_reward, strict=True)]


def fetch(text, state, *, timeout_s=5):
    """A tool: the text between its tags, and a dict that the tools of one trajectory share."""
    state["num_fetched"] = state.get("num_fetched", 0) + 1
    with urllib.request.urlopen(text.strip(), timeout=timeout_s) as page:
        return page.read(1000).decode("utf-8", "replace")


fetch.is_deterministic = False  # its answers do not follow from its input: they are recorded


class GuessTheNumber:
    """An environment: a number between 1 and `largest`, the same for every trajectory of a prompt."""

    def __init__(self, largest=20):
        self._largest = largest

    def reset(self, *, seed, options):
        self._number = random.Random(seed).randint(1, self._largest)
        return f"1 to {self._largest}?\n", {}

    def step(self, text):
        guess = int(text) if text.strip().isdecimal() else 0
        if guess == self._number:
            return "", 1.0, True, False, {}
        return "\nmore\n" if guess < self._number else "\nless\n", 0.0, False, False, {}
