"""When a completion ends: by its last token, by its text, by its length, looked at in this order."""

from collections.abc import Sequence

from rlcore.types import SamplingParams, StopReason, Tokenizer

UNFINISHED = "\ufffd"
"""What a tokenizer gives for the first bytes of a character whose others are still to come."""
MAX_UNFINISHED = 32
"""Tokens after which no whole character is waited for: bytes that make none are not to be decoded for ever."""


class StopText:
    """Looks for stop strings in what a completion says, a token at a time, also where tokens meet.

    Only the last tokens are decoded again: those whose text was not whole yet, and the ones before, whose text may
    depend on where it stands. A function of the tokens it was given, whenever that was.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(stop_strings)
        self.is_found = False
        self._num_kept = max(map(len, self._stops)) - 1
        self._tokens: list[int] = []
        self._num_before = 0
        """Of the tokens, those that were decoded last time, as what the others stand behind."""
        self._tail = ""
        """The end of the text: one character less than the longest stop string has."""

    def put(self, token: int) -> bool:
        """Whether this token completes a stop string: `is_found`, from then on."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[: self._num_before])
        text = self._tokenizer.decode(self._tokens)
        new = text[len(before) :]
        self.is_found |= any(stop in self._tail + new for stop in self._stops)
        is_whole = bool(new) and not new.endswith(UNFINISHED)
        if is_whole or len(self._tokens) - self._num_before >= MAX_UNFINISHED:
            self._tail = (self._tail + new)[-self._num_kept :] if self._num_kept else ""
            self._tokens = self._tokens[self._num_before :]
            self._num_before = len(self._tokens)
        return self.is_found


def reason(tokens: Sequence[int], params: SamplingParams, eos_id: int, *, by_text: bool) -> StopReason:
    """Why a completion that is done is done; `by_text` is whether its last token completed a stop string."""
    if tokens[-1] == eos_id:
        return StopReason.EOS
    if tokens[-1] in params.stop_ids:
        return StopReason.STOP_ID
    return StopReason.STOP_STRING if by_text else StopReason.LENGTH
