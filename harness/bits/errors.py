"""Errors that a user can cause and correct.

UserError               base of all, rlcore's too: the value found, the legal values, and the remedy
HarnessError            base of all of harness
├── ExhaustedError      the machine, or a limit of this process, has run out of something
├── UsageError          a command line or configuration value (also a ValueError)
├── InventoryError      the machine's GPUs cannot be read as asked (also a LookupError)
├── CollectionError     the suite as a whole could not be collected; a failure of the tests, as that of one file is
├── ReportError         an attempt's report was written by another version (also a ValueError)
└── TraceError          a trace that cannot be written or read as asked (also a ValueError)
"""

from harness.bits.exit_codes import ExitCode
from harness.bits.redaction import redact_text
from harness.bits.text import harmless


class UserError(Exception):
    """A failure that the user can correct.

    `what` names the value at fault, `legal` what would be accepted, `remedy` what to type or change.
    """

    def __init__(self, what: str, *, legal: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.legal, self.remedy = what, legal, remedy

    def __reduce__(self) -> tuple[object, ...]:
        """Rebuild the error in another process with all its fields, whatever its constructor asks for."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))

    def __str__(self) -> str:
        lines = [self.what]
        if self.legal:
            lines.append(f"  legal:  {self.legal}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)


def _rebuild(cls: type[UserError], args: tuple[object, ...], fields: dict[str, object]) -> UserError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(fields)
    return error


class HarnessError(UserError):
    """A failure that the user can correct; printed as three lines, never as a traceback.

    `what` names the value at fault, `legal` what would be accepted, `remedy` what to type or change, each without
    secrets and control characters: they may quote a command line or a file. `exit_code` is that of a command it ends.
    """

    exit_code = ExitCode.USAGE_ERROR
    in_record = False
    """Whether the record of a run, and its JSON, hold it already."""
    has_lines = True
    """Whether a text of it may have several lines; what only quotes names and data of others may not forge any."""

    def __init__(self, what: str, *, legal: str = "", remedy: str = "") -> None:
        super().__init__(self._shown(what), legal=self._shown(legal), remedy=self._shown(remedy))

    def _shown(self, text: str) -> str:
        """Text that may quote the files of others: without secrets, and with nothing in it that a terminal obeys."""
        lines = redact_text(text).split("\n") if self.has_lines else [redact_text(text)]
        return "\n".join(map(harmless, lines))


class ExhaustedError(HarnessError):
    """A full or read-only disk, or no inode, descriptor, process or memory left (`harness.process.exhaustion`)."""


class UsageError(HarnessError, ValueError):
    """A value on the command line or in the configuration that cannot be used."""


class InventoryError(HarnessError, LookupError):
    """GPUs were asked for by name that this process may not use, or that do not exist."""


class BusyGpusError(InventoryError):
    """GPUs were asked for that others use now, and that this process may have afterwards."""


class CollectionError(HarnessError):
    """The suite as a whole could not be collected: no file list came back."""

    exit_code = ExitCode.TESTS_FAILED


class ReportError(HarnessError, ValueError):
    """An attempt's report.jsonl says it was written by a version this one cannot read."""

    has_lines = False


class TraceError(HarnessError, ValueError):
    """A trace, or a part of one, that cannot be written or read as asked."""

    has_lines = False
