"""The web page's process, as the daemon starts and keeps it: it reads on its own, as commands do,
and nothing that anybody asks of it reaches the daemon."""

import logging
import subprocess
import sys
import threading

from hpctl.toolkit.compat import SAFE_PATH

log = logging.getLogger(__name__)

AGAIN_S = (1.0, 60.0)
"""How soon a page that ended is started again: at first, and where it keeps ending."""
# The kernel ends it with the thread that has started it, however the daemon ends.
_HUMBLE = ("setpriv", "--pdeathsig", "TERM", "nice", "-n", "19")


class StatusPageProcess:
    """`hpctl page`, at the lowest priority."""

    def __init__(self, config_path: str, listen: str) -> None:
        """`listen` empty: there is none."""
        page = ("hpctl", "page", "--config", config_path)
        self._command = (*_HUMBLE, sys.executable, *SAFE_PATH, *page)
        self._listen = listen
        self._stopping = threading.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(
            target=self._restart_process_until_stopped, name="page-keeper", daemon=True
        )
        self.trouble = ""
        """Why there is no page; empty where there is one, or none is wanted."""

    def start(self) -> None:
        """Serve from now on."""
        if self._listen:
            self._thread.start()

    def reload(self) -> None:
        """Restart it, by the configuration as it is now."""
        if self.process is not None:
            self.process.terminate()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self.reload()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _restart_process_until_stopped(self) -> None:
        soon, latest = AGAIN_S
        pause = soon
        while not self._stopping.is_set():
            ended = self._run_status_page_process_once(latest)
            pause = min(2 * pause, latest) if ended and self.trouble else soon
            self.trouble = f"no page on {self._listen}: `hpctl page` ended: {ended}" * bool(ended)
            if ended:
                log.error("%s; another is started in %.0f s", self.trouble, pause)
            self._stopping.wait(pause)

    def _run_status_page_process_once(self, well_s: float) -> object:
        """Run one until it ends; its exit status, 0 where it was asked to, or why it did not start.
        One that serves for so long is well."""
        try:
            with subprocess.Popen(self._command, stdin=subprocess.DEVNULL) as process:
                self.process = process
                if self._stopping.is_set():
                    process.terminate()
                try:
                    return process.wait(well_s)
                except subprocess.TimeoutExpired:
                    self.trouble = ""
                    return process.wait()
        except OSError as error:
            return error
