"""Programs that begin in a process which has imported torch already.

An import of torch takes seconds, and longer where many do it at once. multiprocessing's fork server
imports it once; every program is a fork of that server. No process that forks has touched the GPU.
What looks at a rank from outside (py-spy, `hpctl stacks`) needs real programs: see ranks.py.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

PRELOADED = ("torch", "torch.distributed.checkpoint")


class WarmPrograms:
    """The fork server of a part. A context manager. `environment` is what every program gets."""

    def __init__(
        self, environment: Mapping[str, str], preloaded: Sequence[str] = PRELOADED
    ) -> None:
        # The server inherits this process's environment when it starts.
        os.environ.update(environment)
        context = multiprocessing.get_context("forkserver")
        assert isinstance(context, ForkServerContext)
        context.set_forkserver_preload([*preloaded, "tests.gpu.training.warm"])
        self._context = context

    def __enter__(self) -> WarmPrograms:
        return self

    def __exit__(self, *_: object) -> None:
        # It would end by itself a moment after this process, and count as left running until then.
        multiprocessing.forkserver._forkserver._stop()
        multiprocessing.resource_tracker._resource_tracker._stop()

    def start(
        self,
        program: Path,
        words: Sequence[object],
        name: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> WarmProgram:
        """Start a program with these words; `environment` is added to what it inherits."""
        folder.mkdir(parents=True, exist_ok=True)
        texts = [str(word) for word in words]
        process = self._context.Process(
            target=run_program,
            args=(str(program), texts, str(folder / name), dict(environment or {})),
            name=name,
        )
        process.start()
        return WarmProgram(process, folder / name)


class WarmProgram:
    """One started program, with its output in files."""

    def __init__(self, process: BaseProcess, place: Path) -> None:
        self._process = process
        self.out_file = place.with_name(place.name + ".stdout")
        self.err_file = place.with_name(place.name + ".stderr")
        self.began = time.monotonic()

    @property
    def code(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    @property
    def out(self) -> str:
        """Return what it has printed."""
        return self.out_file.read_text(errors="replace") if self.out_file.exists() else ""

    @property
    def err(self) -> str:
        """Return what it has written to standard error."""
        return self.err_file.read_text(errors="replace") if self.err_file.exists() else ""

    def wait(self, limit_s: float) -> int | None:
        """Wait for its end; None, and it is killed, if that does not come in time."""
        self._process.join(max(0.1, limit_s))
        code = self._process.exitcode
        if code is None:
            self.kill()
        return code

    def kill(self) -> None:
        """Kill it and wait until it has ended."""
        with suppress(OSError):
            self._process.kill()
        self._process.join(10.0)


def run_program(program: str, words: list[str], place: str, environment: dict[str, str]) -> None:
    """Run a program in this process as the interpreter would, and end the process.

    An exception is printed without the frames of this file, as a reader of the program's own log
    sees it.
    """
    os.environ.update(environment)
    for number, suffix in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{place}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    sys.argv = [program, *words]
    namespace = {"__name__": "__main__", "__file__": program}
    code = 0
    try:
        exec(compile(Path(program).read_text(), program, "exec"), namespace)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 -- whatever ends a program goes to its log
        shown = error.with_traceback(_below_this_file(error.__traceback__))
        sys.excepthook(type(error), shown, shown.__traceback__)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _below_this_file(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
