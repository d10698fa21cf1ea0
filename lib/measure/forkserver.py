"""A process that has imported vLLM once and forks an engine process whenever it is asked.

Importing vLLM takes longer than building a small engine on a CPU, and `reproduce` starts many of them from one kernel
after the other. Engines of the CPU profile (VLLM_ENABLE_V1_MULTIPROCESSING=0) may come from here; one on a GPU may not: CUDA
and vLLM's own child processes want a process of their own.

`open_fork_server` starts it and names its socket in the environment, where `engines` finds it. A request carries the plan and
the environment as JSON, and the file descriptors of the engine's standard input, log and events; the answers are the
engine's process id, then its exit code.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOCKET_VARIABLE = "SPECULATION_FORK_SERVER"
_MAX_REQUEST = 1 << 20
_LONGEST = 60  # characters of a temporary folder; a socket's path may have about 100 in all


class Forked:
    """An engine process that a fork server forked; the part of `subprocess.Popen` that `engines` uses."""

    def __init__(self, server: str, plan: Path, env: dict[str, str], log: int, events: int):
        read, write = os.pipe()
        self._answers = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answers.connect(server)
        request = json.dumps({"plan": str(plan), "env": env}).encode()
        socket.send_fds(self._answers, [request], [read, log, events])
        os.close(read)
        self.stdin = os.fdopen(write, "wb")
        self.pid = int(self._answers.recv(64))
        self._code: int | None = None

    def wait(self) -> int:
        """The exit code, negative for a signal, once the process has ended."""
        if self._code is None:
            self._code = int(self._answers.recv(64) or -signal.SIGKILL)  # nothing: the server itself was killed
            self._answers.close()
        return self._code


@contextlib.contextmanager
def open_fork_server(env: dict[str, str]) -> Iterator[None]:
    """Engines started meanwhile, by this process or by kernels it starts, are forked from one process with `env`.

    Returns when vLLM has been imported. Where that fails, engines are started one by one and say why.
    """
    short = None if len(tempfile.gettempdir()) <= _LONGEST else "/tmp"
    with tempfile.TemporaryDirectory(prefix="speculation-fork-", dir=short) as folder:
        where = Path(folder) / "socket"
        child = subprocess.Popen(
            [sys.executable, "-m", "lib.measure.forkserver", str(where)], env=env, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            while child.poll() is None and not where.exists():
                time.sleep(0.1)
            os.environ[SOCKET_VARIABLE] = str(where)
            yield
        finally:
            os.environ.pop(SOCKET_VARIABLE, None)
            child.stdin.close()
            child.wait()


def address() -> str | None:
    """Where the fork server that this process may ask listens; None if there is none."""
    found = os.environ.get(SOCKET_VARIABLE)
    return found if found and os.path.exists(found) else None


def _become_engine(request: dict[str, Any], descriptors: list[int]) -> None:
    """In the forked child: become the engine of the request. Does not return."""
    from lib.measure import worker

    code = 1
    try:
        os.setpgid(0, 0)
        stdin, log, events = descriptors
        for given, own in ((stdin, 0), (log, 1), (log, 2)):
            os.dup2(given, own)
        os.environ.clear()
        os.environ.update(request["env"] | {worker.EVENTS_VARIABLE: str(events)})
        code = worker.main(request["plan"])
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(where: str) -> None:
    """Fork engines until standard input closes. One thread only: a fork copies no other."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(where + ".new")
    listener.listen()
    from vllm import LLM  # noqa: F401

    gc.freeze()
    os.rename(where + ".new", where)  # from now on `address` finds it
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                shutil.rmtree(os.path.dirname(where), ignore_errors=True)  # who opened it may have been killed
                return
            if key.fileobj is listener:
                connection, _ = listener.accept()
                text, descriptors, _, _ = socket.recv_fds(connection, _MAX_REQUEST, 3)
                pid = os.fork()
                if pid == 0:
                    selector.close()
                    listener.close()
                    connection.close()
                    _become_engine(json.loads(text), descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
                with contextlib.suppress(OSError):  # the child did it: whoever learns the pid can end the group at once
                    os.setpgid(pid, pid)
                connection.send(str(pid).encode())
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))
            else:
                pid, connection = key.data
                selector.unregister(key.fileobj)
                os.close(key.fileobj)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(OSError):  # who asked is gone
                    connection.send(str(os.waitstatus_to_exitcode(status)).encode())
                connection.close()


if __name__ == "__main__":
    serve(sys.argv[1])
