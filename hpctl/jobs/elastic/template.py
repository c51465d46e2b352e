"""The warm template: a process that has imported torch already and forks the ranks.

Started by the launcher as a plain file with the user's interpreter, which may be an older Python
without hpctl: only the standard library here, nothing of hpctl, no syntax newer than 3.8.

Fork is safe only from a process with one thread that has not touched an accelerator. Both are
looked at after the imports; where one does not hold the template says so and ends, and the launcher
starts ranks the ordinary way. Each rank is forked fresh from the template, never from another rank.

Messages are lines of JSON on the socket whose number is the first argument:
  in:  {"start": ID, "env": {...}, "unset": [...], "argv": [...], "module": bool} | {"reap": PID}
  out: {"ready": true} | {"unfit": WHY} | {"started": ID, "pid": PID} | {"ended": PID, "status": S}
An ended rank stays a zombie until `reap`, so that its process id cannot belong to another while
the launcher still signals it. The end of the socket ends the ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import types
from typing import Any

_PR_SET_PDEATHSIG = 1
_LIMIT = 4 << 20
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render", "/dev/neuron", "/dev/accel")
_LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Import, report, then fork ranks until the socket ends."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:1] = []  # this file's own directory: its names must not hide anybody's modules
    _die_with(int(sys.argv[2]))
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are meant for ranks; ours end is the socket's
    for name in sys.argv[3].split(","):
        importlib.import_module(name)  # where one fails, its traceback is the reason
    why = _unfit()
    if why:
        _send(channel, {"unfit": why})
        return
    wake_out, wake_in = socket.socketpair()
    for end in (wake_out, wake_in):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_in.fileno(), warn_on_full_buffer=False)
    _send(channel, {"ready": True})
    run = _serve(channel, wake_out)
    if run is not None:  # in a rank: every frame of the template is behind us
        for each in (channel, wake_out, wake_in):
            each.close()
        _become(run)


def _serve(channel: socket.socket, wake: socket.socket) -> dict[str, Any] | None:
    """The loop. Returns the order in a freshly forked rank, and None when the launcher is gone."""
    buffer = b""
    alive: set[int] = set()
    while True:
        ready, _, _ = select.select([channel, wake], [], [])
        if wake in ready:
            _drain(wake)
        for pid in list(alive):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                alive.discard(pid)
                killed = ended.si_code != os.CLD_EXITED
                status = -ended.si_status if killed else ended.si_status
                _send(channel, {"ended": pid, "status": status})
        if channel not in ready:
            continue
        got = b""
        with contextlib.suppress(OSError):  # a launcher that was killed resets it: the end as well
            got = channel.recv(65536)
        buffer += got
        if not got or len(buffer) > _LIMIT:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            return None
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "reap" in order:
                os.waitpid(order["reap"], 0)
                continue
            pid = _fork()
            if pid == 0:
                return dict(order)
            alive.add(pid)
            _send(channel, {"started": order["start"], "pid": pid})


def _fork() -> int:
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        _die_with(parent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return pid


def _become(order: dict[str, Any]) -> None:
    """Run the script or module as `python` itself would; what it raises ends the process."""
    for name in order["unset"]:
        os.environ.pop(name, None)
    os.environ.update(order["env"])
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # a fork shares its state; `random` itself is seeded anew by Python
    usual = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        # The frames of this file say nothing to the reader of a training script's traceback.
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        _record(error)
        usual(kind, error, trace)

    sys.excepthook = hook
    _run(order["argv"], order["module"])


def _run(argv: list[str], module: bool) -> None:
    main_module: Any = types.ModuleType("__main__")
    if module:
        sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(argv[0])
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(argv[0] + ".__main__")
        if spec is None or spec.loader is None:
            raise ImportError("No module named " + argv[0])
        loader: Any = spec.loader
        code = loader.get_code(spec.name)
        path = spec.origin or argv[0]
        main_module.__spec__ = spec
        main_module.__package__ = spec.parent
        main_module.__loader__ = loader
    else:
        path = argv[0]
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
        with open(path, "rb") as script:
            code = compile(script.read(), path, "exec")
    main_module.__file__ = path
    sys.modules["__main__"] = main_module
    sys.argv[:] = [path, *argv[1:]]
    exec(code, main_module.__dict__)  # noqa: S102 (the training script: what we are here for)


def _record(error: BaseException) -> None:
    """Torch's error file, where the script does not use `@record`: never over one that is there."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    said = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    try:
        with open(path, "w") as file:
            json.dump({"message": said}, file)
    except OSError as failed:
        print(f"hpctl elastic: {failed}", file=sys.stderr)


def _unfit() -> str:
    """Why this process must not be forked from, or nothing."""
    if threading.active_count() > 1:
        return "the imports started Python threads: " + ", ".join(
            sorted(
                each.name for each in threading.enumerate() if each is not threading.main_thread()
            )
        )
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return (
            f"the imports started {threads - 1} native threads; with OMP_NUM_THREADS=1, torchrun's"
            " own default for several ranks a node, BLAS starts none"
        )
    devices = open_devices()
    if devices:
        return (
            "the imports opened "
            + ", ".join(devices)
            + ": a driver's state does not survive a fork"
        )
    return ""


def open_devices(folder: str = "/proc/self/fd") -> list[str]:
    """The accelerators that this process has open: CUDA and NVML, ROCm, Neuron, Habana.

    More than `torch.cuda.is_initialized()` knows: `torch.cuda.is_available()` alone starts the
    driver, and any library may do so.
    """
    found = set()
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # the folder's own descriptor is closed by now
            found.add(os.readlink(os.path.join(folder, name)))
    return sorted(path for path in found if path.startswith(_DEVICES))


def _die_with(parent: int) -> None:
    """SIGKILL to us when our parent ends; at once where it has ended already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _drain(wake: socket.socket) -> None:
    with contextlib.suppress(BlockingIOError):
        while wake.recv(512):
            pass


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the launcher is gone: the end of the socket is read next
        channel.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
