"""Read files that another process appends to, without waiting for it."""

import os

from harness.bits.files import CHUNK_BYTES, MAX_BYTES, POLL_BYTES, StrPath, kind_of, open_regular, replacing

MAX_LINE_BYTES = 1 << 26
NOTHING = "nothing"


def read_end(path: StrPath, max_bytes: int, *, start: int = 0) -> str:
    """Read the last bytes of a regular file as UTF-8, none before `start`; "" where it cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - max_bytes))
            return file.read(max_bytes).decode(errors="replace")
    except OSError:
        return ""


class GrowingFile:
    """A file that another process appends to, opened once: a later file of the same name is not read.

    `max_bytes` limits what is read of it in all; UNLIMITED is for readers that keep nothing.
    """

    def __init__(self, path: StrPath, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.is_behind = False
        """Whether the last `read` came to its own limit before it came to the end of the file."""
        self._fd = -1
        self._num_read = 0

    def make(self) -> None:
        """Make the file, which must not exist. OSError where that cannot be done."""
        flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o644)

    def read(self) -> bytes:
        """Read what is new, at most POLL_BYTES of it; nothing while there is no file. OSError as `open_regular`."""
        self.is_behind = False
        if self._fd < 0:
            try:
                with open_regular(self.path) as file:
                    self._fd = os.dup(file.fileno())
            except FileNotFoundError:
                return b""
        chunks: list[bytes] = []
        for _ in range(POLL_BYTES // CHUNK_BYTES):
            chunk = os.pread(self._fd, min(CHUNK_BYTES, self.max_bytes - self._num_read), self._num_read)
            if not chunk:
                return b"".join(chunks)
            self._num_read += len(chunk)
            chunks.append(chunk)
        self.is_behind = True
        return b"".join(chunks)

    def rewind(self) -> None:
        """Read it from its beginning again."""
        self._num_read = 0

    @property
    def size_bytes(self) -> int:
        """Size of the file now; 0 while none is open."""
        return os.fstat(self._fd).st_size if self._fd >= 0 else 0

    @property
    def excess(self) -> str:
        """Note on a file that holds more than is read of it; empty for any other file."""
        if self.size_bytes <= self.max_bytes:
            return ""
        return f"{os.fspath(self.path)} has {self.size_bytes:,} bytes, of which the first {self.max_bytes:,} were read"

    @property
    def replaced_by(self) -> str:
        """Kind of file that has the name now: "a FIFO", NOTHING; empty if it is still this file, or none was opened."""
        if self._fd < 0:
            return ""
        ours = os.fstat(self._fd)
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return NOTHING
        except OSError as error:
            return f"a name that cannot be looked up ({error.strerror})"
        return "" if (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino) else kind_of(found.st_mode)

    def put_back(self) -> None:
        """Put a copy of the file under its name again. OSError if that fails."""
        with replacing(self.path) as file:
            at = 0
            while chunk := os.pread(self._fd, min(POLL_BYTES, self.max_bytes - at), at):
                file.write(chunk)
                at += len(chunk)

    def close(self) -> None:
        """Close the file; nothing is read any more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class GrowingLines:
    """The lines of a growing file, each once, when its newline is there.

    A line of more than `max_line_bytes` is left out and counted; no more than that is held of it.
    """

    def __init__(self, file: GrowingFile, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.file = file
        self.num_left_out = 0
        self._max_line_bytes = max_line_bytes
        self._held: list[bytes] = []
        self._num_held_bytes = 0

    def poll(self) -> list[bytes]:
        """Return the new whole lines, without their newlines. OSError as `GrowingFile.read`."""
        data = self.file.read()
        first, *others = data.split(b"\n")
        self._hold(first)
        if not others:
            return []
        *lines, rest = others
        if len(data) > self._max_line_bytes:
            fitting = [line for line in lines if len(line) <= self._max_line_bytes]
            self.num_left_out += len(lines) - len(fitting)
            lines = fitting
        if self._num_held_bytes <= self._max_line_bytes:
            lines.insert(0, b"".join(self._held))
        else:
            self.num_left_out += 1
        self._held, self._num_held_bytes = [], 0
        self._hold(rest)
        return lines

    def _hold(self, piece: bytes) -> None:
        """Keep a piece of a line whose newline is not there yet; of a line that is too long, its length alone."""
        self._num_held_bytes += len(piece)
        if self._num_held_bytes <= self._max_line_bytes:
            self._held.append(piece)
        else:
            self._held.clear()
