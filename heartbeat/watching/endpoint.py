"""Where the heartbeat socket lies: a private directory with a short enough path, else an abstract address.

The directory is locked with flock(2) as long as its agent lives, however it dies. So whoever gets the lock knows that
the owner is gone, in whatever PID namespace that was, and systemd-tmpfiles(8) leaves a locked directory alone. Some
network file systems keep such locks for each machine: the name holds the beginning of the kernel's boot id, and only
what bears that of this kernel is ever taken for left behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence

MAX_PATH_BYTES = 107
"""sun_path holds 108 bytes, the last of them a NUL (unix(7))."""
PREFIX = "ftlaunch-"
SOCKET_NAME = "beats"
_FALLBACKS = ("/tmp", "/dev/shm")
_ATTEMPTS = 4
_MAX_SCANNED = 20_000
_MAX_FILES = 64


class EndpointError(Exception):
    """There is no place for the socket. One line: what was tried, and why each did not do. The agent ends with it."""


class Endpoint:
    """A bound, non-blocking receiver and its place. Made by :func:`open_endpoint`."""

    def __init__(self, receiver: socket.socket, address: str, directory: str, lock_fd: int) -> None:
        self.receiver = receiver
        self.address = address
        """For FTLAUNCH_SOCKET: an absolute path, or ``@`` and an abstract name."""
        self.directory = directory
        """Mode 0700 and ours alone; other sockets of the agent may lie there too. Empty with an abstract address."""
        self._lock_fd = lock_fd

    def intact(self) -> bool:
        """Whether a new worker can still reach the receiver by its address.

        Not so when somebody emptied the place: /run/user/<uid> is removed when the user logs out, for one.
        """
        if not self.directory:
            return True
        with contextlib.suppress(OSError):
            return stat.S_ISSOCK(os.stat(self.address).st_mode) and _same_place(self.directory, self._lock_fd)
        return False

    def close(self) -> None:
        """Close the receiver and remove the directory with all sockets and files in it. Twice is harmless."""
        self.receiver.close()
        if self._lock_fd >= 0:
            _remove(self.directory, self._lock_fd)
            os.close(self._lock_fd)
            self._lock_fd = -1


def open_endpoint(
    environ: Mapping[str, str], fallbacks: Sequence[str] = _FALLBACKS, *, abstract: bool = True
) -> Endpoint:
    """Bind in ``$XDG_RUNTIME_DIR``, ``$TMPDIR``, then ``fallbacks``, then at an abstract address: the first that works.

    A place works when a directory of mode 0700 can be made there, its path is short enough, and the file system takes
    sockets. Well under a millisecond. Raises :class:`EndpointError`.
    """
    tried = []
    for root in _roots(environ, fallbacks):
        try:
            return _open_in(root)
        except OSError as error:
            tried.append(f"{root}: {error.strerror or error}")
    if abstract:
        try:
            return _open_abstract()
        except OSError as error:
            tried.append(f"abstract address: {error.strerror or error}")
    raise EndpointError(f"no place for the heartbeat socket ({'; '.join(tried)}); set TMPDIR to a short, writable path")


def sweep_stale(environ: Mapping[str, str], fallbacks: Sequence[str] = _FALLBACKS) -> int:
    """Remove directories that dead agents of this user and this boot left behind; returns how many. Never raises.

    Looks at no more than 20 000 names per place (about 10 ms): not for the way to the first worker.
    """
    removed, boot = 0, _boot()
    for root in _roots(environ, fallbacks) if boot else ():
        for path in _candidates(root, PREFIX + boot):
            removed += _remove_if_stale(path)
    return removed


def _roots(environ: Mapping[str, str], fallbacks: Sequence[str]) -> list[str]:
    named = [environ.get("XDG_RUNTIME_DIR", ""), environ.get("TMPDIR", ""), *fallbacks]
    # Absolute, because a worker may have changed its directory before it connects.
    return list(dict.fromkeys(os.path.abspath(root) for root in named if root))


def _open_in(root: str) -> Endpoint:
    boot = _boot()
    for _ in range(_ATTEMPTS):
        directory = os.path.join(root, PREFIX + boot + secrets.token_hex(4))
        address = os.path.join(directory, SOCKET_NAME)
        length = len(os.fsencode(address))
        if length > MAX_PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, f"{address} has {length} bytes, a socket's path at most {MAX_PATH_BYTES}")
        lock_fd = _make_directory(directory)
        if lock_fd is None:
            continue
        try:
            receiver = _bind(address)
            os.chmod(address, 0o600)
        except OSError:
            _remove(directory, lock_fd)
            os.close(lock_fd)
            raise
        return Endpoint(receiver, address, directory, lock_fd)
    raise OSError(errno.EEXIST, "no free name")


def _make_directory(directory: str) -> int | None:
    """A new private directory, locked; ``None`` if another agent's sweep took it for a stale one meanwhile."""
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return None
    try:
        # Whatever the umask left of it.
        os.chmod(directory, 0o700)
        lock_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(lock_fd)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            raise OSError(errno.EPERM, "the file system keeps no private directories")
        if not _lock(lock_fd) or not _same_place(directory, lock_fd):
            os.close(lock_fd)
            return None
    except OSError:
        os.close(lock_fd)
        with contextlib.suppress(OSError):
            os.rmdir(directory)
        raise
    return lock_fd


def _lock(fd: int) -> bool:
    """False when somebody else holds it. A file system without locks (NFS for directories) counts as locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _same_place(directory: str, fd: int) -> bool:
    try:
        named = os.stat(directory, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(named, os.fstat(fd))


def _open_abstract() -> Endpoint:
    name = PREFIX + secrets.token_hex(16)
    return Endpoint(_bind("\0" + name), "@" + name, "", -1)


def _bind(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        # Before bind: not a single message may come without its sender's credentials.
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        receiver.bind(address)
    except OSError:
        receiver.close()
        raise
    return receiver


def _boot() -> str:
    """How names of this boot go on; empty where the kernel does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(8) + "-"
    except OSError:
        return ""


def _candidates(root: str, beginning: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for count, entry in enumerate(entries):
            if count >= _MAX_SCANNED:
                return
            if entry.name.startswith(beginning) and entry.is_dir(follow_symlinks=False):
                yield entry.path


def _remove_if_stale(directory: str) -> bool:
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if os.fstat(fd).st_uid != os.geteuid() or not _is_endpoint(fd):
            return False
        # Unlike for our own: where locks do not work, nobody can be known to be dead.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _remove(directory, fd)
    except OSError:
        return False
    finally:
        os.close(fd)


def _is_endpoint(fd: int) -> bool:
    """Whether it is ours by its content: empty, or with the socket; others may use the same prefix."""
    names = os.listdir(fd)
    return stat.S_IMODE(os.fstat(fd).st_mode) == 0o700 and (not names or SOCKET_NAME in names)


def _remove(directory: str, fd: int) -> bool:
    """Remove a locked directory and the files in it, through its descriptor: the path may be another one by now."""
    with contextlib.suppress(OSError):
        for name in os.listdir(fd)[:_MAX_FILES]:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=fd)
        if _same_place(directory, fd):
            os.rmdir(directory)
            return True
    return False
