"""How to reach etcd and how a job uses it: frozen, complete, checked before the first connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ftlaunch.rendezvous.interface import SettingsError

DEFAULT_PORT = 2379


@dataclass(frozen=True)
class Endpoint:
    """One etcd member, as the client dials it."""

    host: str
    port: int

    @property
    def target(self) -> str:
        """``host:port``, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Tls:
    """PEM files. Without ``ca_file`` the system's own authorities are trusted."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None


@dataclass(frozen=True)
class Credentials:
    """User and password; the password never shows in a representation."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class EtcdSettings:
    """Everything the backend needs to know. Durations are seconds.

    ``node_timeout_s`` is the lease: a node that is not heard of for that long is dead to the others. Its agent sends
    :class:`~ftlaunch.rendezvous.interface.LeaseLost` ``fence_margin_s`` earlier, which is the time it has to stop its
    workers. ``stop_on_outage``: whether a node that cannot reach etcd for that long stops its workers (nobody can
    tell an outage of etcd from being cut off) or trains on until it hears that the others went on without it.
    """

    endpoints: tuple[Endpoint, ...]
    job_id: str
    min_nodes: int = 1
    max_nodes: int = 1
    root: str = "/ftlaunch"
    tls: Tls | None = None
    credentials: Credentials | None = None
    node_timeout_s: float = 10.0
    fence_margin_s: float | None = None
    connect_timeout_s: float = 60.0
    join_timeout_s: float = 600.0
    last_call_s: float = 30.0
    call_timeout_s: float = 5.0
    state_ttl_s: float = 600.0
    tombstone_ttl_s: float = 60.0
    stop_on_outage: bool = True
    allow_multiple_agents_per_node: bool = False

    @property
    def margin_s(self) -> float:
        """How long before the lease can end the workers must begin to stop; a fifth of the lease unless given."""
        return self.node_timeout_s / 5 if self.fence_margin_s is None else self.fence_margin_s


def parse_endpoints(text: str) -> tuple[tuple[Endpoint, ...], bool | None]:
    """Read ``host[:port]``, URLs and IPv6 addresses in brackets, separated by commas.

    The second value says whether the URLs ask for TLS, ``None`` when there is no URL among them.
    Raises :class:`SettingsError`.
    """
    found: list[Endpoint] = []
    schemes: set[str] = set()
    for item in filter(None, (part.strip() for part in text.split(","))):
        scheme, separator, rest = item.rpartition("://")
        if separator:
            schemes.add(scheme)
        found.append(_endpoint(rest.rstrip("/"), item))
    if not found:
        raise SettingsError("the etcd rendezvous needs an endpoint: --rdzv-endpoint HOST[:PORT][,HOST[:PORT]...]")
    if schemes - {"http", "https"}:
        raise SettingsError(f"rendezvous endpoint {text!r}: only http:// and https:// are known")
    if len(schemes) > 1:
        raise SettingsError(f"rendezvous endpoint {text!r} mixes http and https")
    return tuple(found), ("https" in schemes) if schemes else None


def _endpoint(text: str, original: str) -> Endpoint:
    host, port = text, ""
    if "@" in text:
        # Not shown: it may hold a password.
        raise SettingsError("a rendezvous endpoint is HOST[:PORT], without user and password: see ETCDCTL_USER")
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        if rest and not rest.startswith(":"):
            raise SettingsError(f"rendezvous endpoint {original!r} is not HOST[:PORT]")
        port = rest[1:]
    elif text.count(":") == 1:
        host, port = text.split(":")
    # More than one colon without brackets is a bare IPv6 address.
    if not host or "/" in host:
        raise SettingsError(f"rendezvous endpoint {original!r} is not HOST[:PORT]")
    if not port:
        return Endpoint(host, DEFAULT_PORT)
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingsError(f"rendezvous endpoint {original!r}: {port!r} is not a port")
    return Endpoint(host, int(port))


def check(settings: EtcdSettings) -> None:
    """Find what is wrong before any connection. Raises :class:`SettingsError`."""
    if not settings.job_id:
        raise SettingsError("the etcd rendezvous needs a job id: --rdzv-id ID, the same on all nodes")
    if not 0 < settings.min_nodes <= settings.max_nodes:
        raise SettingsError(f"--nnodes {settings.min_nodes}:{settings.max_nodes}: not 0 < MIN <= MAX")
    if settings.node_timeout_s < 2:
        raise SettingsError(f"--node-timeout {settings.node_timeout_s:g}: etcd leases last 2 seconds or more")
    if not 0 <= settings.margin_s < settings.node_timeout_s:
        raise SettingsError(
            f"fencing margin {settings.margin_s:g} s: must be shorter than --node-timeout {settings.node_timeout_s:g}"
        )
    if settings.tls is not None:
        check_tls(settings.tls)


def check_tls(tls: Tls) -> None:
    """Read the files as the connection will. Raises :class:`SettingsError`, naming the file."""
    if bool(tls.cert_file) != bool(tls.key_file):
        raise SettingsError("a client certificate and its key go together: cert=FILE,key=FILE in --rdzv-conf")
    for name, path in (("cacert", tls.ca_file), ("cert", tls.cert_file), ("key", tls.key_file)):
        if path is None:
            continue
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise SettingsError(f"{name} file {path}: {error.strerror}") from None
        if b"-----BEGIN " not in content:
            raise SettingsError(f"{name} file {path} is not a PEM file")
    _check_pair(tls)


def _check_pair(tls: Tls) -> None:
    import ssl

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if tls.ca_file:
            context.load_verify_locations(tls.ca_file)
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(f"cacert file {tls.ca_file} is not usable: {error}") from None
    try:
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key_file)
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(f"cert {tls.cert_file} and key {tls.key_file} are not usable: {error}") from None


def read_password_file(path: str) -> str:
    """The first line of a file. Raises :class:`SettingsError`."""
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()[0]
    except OSError as error:
        raise SettingsError(f"password file {path}: {error.strerror}") from None
    except (IndexError, UnicodeDecodeError):
        raise SettingsError(f"password file {path} does not begin with a line of text") from None
