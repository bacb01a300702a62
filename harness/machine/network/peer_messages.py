"""The messages between the hosts of `doctor --listen` and `doctor --peer`: sealed with their key, and checked.

    message ─▶ line: HMAC-SHA256 of (key, nonce, sender, count, JSON), then the JSON ─▶ message, or NetworkError

The listener chooses a nonce for each connection, and both ends count their messages. So a line is good once, in one
direction of one connection, and only from a host that has the key. What a message says is checked field by field.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address
from typing import Any

from harness.core.errors import NetworkError
from harness.core.malformed import MALFORMED
from harness.machine.network.host_matching import PeerHost, Tried

VERSION = 2
KEY = r"[0-9a-f]{16}"
MAX_BYTES = 1 << 20
"""Limit on one message."""
MAX_HOSTS = 1024
MAX_OFFERS = 64
"""Addresses of one host; each is tried by every host."""
MAX_CHARS = 253
"""Of a text."""
NAME = r"[\w.:-]{1,253}"
"""Form of the name of a host, which remedies mention beside commands."""


@dataclass(slots=True)
class Seal:
    """One end of a connection: seals what it sends, and opens what the other end has sealed."""

    key: str
    nonce: str
    is_listener: bool
    _num_sealed: int = field(default=0, init=False)
    _num_opened: int = field(default=0, init=False)

    def seal(self, kind: str, fields: Mapping[str, Any]) -> bytes:
        """Return the line of a message."""
        return self.seal_text(json.dumps({"k": kind, **fields}))

    def seal_text(self, text: str) -> bytes:
        """Return the line of a message that is written already, in ASCII."""
        mac = self._mac(self.is_listener, self._num_sealed, text)
        self._num_sealed += 1
        return f"{mac} {text}\n".encode("ascii")

    def open(self, line: bytes, kind: str) -> dict[str, Any]:
        """Return the message of a line; NetworkError if it was not sealed with this key, or is of another kind."""
        return parse_message(self.open_text(line, kind), kind)

    def open_text(self, line: bytes, kind: str) -> str:
        """Return the text of a line; NetworkError if it was not sealed with this key. `kind` is for the message."""
        try:
            mac, _, text = line.decode("ascii").rstrip("\n").partition(" ")
        except UnicodeDecodeError:
            raise NetworkError(f"the message received is not a {kind} message") from None
        if not hmac.compare_digest(mac, self._mac(not self.is_listener, self._num_opened, text)):
            raise NetworkError(f"the {kind} message was sealed with another key")
        self._num_opened += 1
        return text

    def _mac(self, is_listener: bool, number: int, text: str) -> str:
        signed = f"{VERSION} {self.nonce} {is_listener:d} {number} {text}"
        return hmac.new(self.key.encode("ascii"), signed.encode(), hashlib.sha256).hexdigest()


def parse_message(text: str | bytes, kind: str) -> dict[str, Any]:
    """Return the JSON object of a message; NetworkError for anything else, or another kind."""
    try:
        message = json.loads(text)
    except MALFORMED:
        message = None
    if not isinstance(message, dict) or message.get("k") != kind:
        raise NetworkError(f"the message received is not a {kind} message")
    return message


def host_fields(host: PeerHost) -> dict[str, Any]:
    """Return a host as a message has it."""
    return {"version": VERSION, **asdict(host)}


def read_host(given: object, own: PeerHost | None = None) -> PeerHost:
    """Return the host that a message describes; NetworkError for no host, or one of another version.

    It may offer an address of the loopback or of a link only to a host that has one itself, `own`: elsewhere that is
    an address of the host that tries it, or of what is beside it.
    """
    if isinstance(given, dict) and given.get("version") != VERSION:
        raise NetworkError(
            f"it uses version {str(given.get('version'))[:20]!r} of the protocol",
            legal=f"version {VERSION} on all",
        )
    host: PeerHost = _checked(PeerHost, given, "a host")
    texts = (host.token, *(offer.interface for offer in host.offers))
    scopes = {_scope(offer.address) for offer in own.offers} if own else set()
    is_host = (
        all(text.isprintable() and len(text) <= MAX_CHARS for text in texts)
        and all(0 <= port < 1 << 16 for port in host.ports)
        and len(host.offers) <= MAX_OFFERS
        and re.fullmatch(NAME, host.name) is not None
        and all(_is_address(offer.address, offer.family) for offer in host.offers)
        and all(_scope(offer.address) in {"", *scopes} for offer in host.offers)
    )
    if not is_host:
        raise NetworkError("the message received does not describe a host")
    return host


def read_roster(message: Mapping[str, Any], own: PeerHost) -> tuple[tuple[PeerHost, ...], int]:
    """Return all hosts, and the index of the one that the message is for, which is `own`; NetworkError."""
    hosts, number = message.get("hosts"), message.get("you")
    if type(hosts) is not list or type(number) is not int or not 0 <= number < len(hosts) <= MAX_HOSTS:
        raise NetworkError("the message received does not list the hosts")
    return tuple(read_host(host, own) for host in hosts), number


def read_tried(message: Mapping[str, Any], num_hosts: int) -> tuple[Tried, ...]:
    """Return the connections that hosts have tried; NetworkError."""
    tried: tuple[Tried, ...] = _checked(tuple[Tried, ...], message.get("tried"), "connections")
    for each in tried:
        is_of_hosts = 0 <= each.caller < num_hosts and 0 <= each.host < num_hosts
        if not (is_of_hosts and _is_address(each.address, None) and each.problem.isprintable()):
            raise NetworkError("the message received does not describe connections")
    return tried


def _scope(text: str) -> str:
    """Within what an address is one: "loopback", "link"; empty for one of a network."""
    address = ip_address(text)
    address = getattr(address, "ipv4_mapped", None) or address
    return "loopback" if address.is_loopback else "link" if address.is_link_local else ""


def _is_address(text: str, family: int | None) -> bool:
    """Whether this is an address that a host can have; never a name, which would be looked up."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return family in (None, address.version) and not (address.is_multicast or address.is_unspecified or "%" in text)


def _checked(kind: Any, value: object, what: str) -> Any:
    """A value as an object of this type; strictly, so that no text is taken for a number."""
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(kind).validate_json(json.dumps(value, allow_nan=False), strict=True)
    except MALFORMED:  # pydantic's ValidationError is a ValueError
        raise NetworkError(f"the message received does not describe {what}") from None
