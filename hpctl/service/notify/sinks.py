"""Send a message to one sink, by Apprise's command in a separate process.

A sink's URL holds secrets: it is read from a file or the environment each time, reaches the process
by its environment, and is never logged or shown. Apprise has a hundred and more services behind it
that may hang, raise or take memory: none of that is the daemon's, which waits on a thread.
"""

import importlib.util
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from hpctl.service.notify.outbox import NotificationMessage
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.errors import HpctlError

SEND_S: Final = 20.0
"""How long a sink may take."""
_APPRISE = "import sys; sys.path[:] = filter(None, sys.path); from apprise.cli import main; main()"
"""Nothing is imported from the current directory, see `toolkit.compat.SAFE_PATH`."""
_HOST: Final = re.compile(
    r"(json|xml|form)?\w*?(s)?://(?:[^/@]*@)?([\w.-]+)(?::(\d{1,5}))?(?=[/?]|$)"
)
"""Where a URL's messages go, if it is a webhook's or has a port; a service's has tokens there."""
_ADDRESS: Final = re.compile(r"(?=.{1,254}$)\w[\w.%+-]*(@\w[\w.-]*)?", re.ASCII)
"""What may follow `mail -s SUBJECT`: never an option."""


class UnusableNotificationSinkError(HpctlError):
    """A sink to which nothing can be sent as it is set up."""


def read_notification_sink_url(name: str, source: str) -> str:
    """Return the URL that a file, or `env:NAME`, holds. Raises UnusableNotificationSinkError, which
    names the fix."""
    if source.startswith("env:"):
        url = os.environ.get(source[4:], "")
    else:
        try:
            with Path(source).open(encoding="utf-8", errors="replace") as file:
                mode, url = os.fstat(file.fileno()).st_mode, file.read(4096)
        except OSError as error:
            fix = f"write the sink's URL into the file, and run: chmod 0640 {source}"
            raise UnusableNotificationSinkError(
                f"cannot use the notification sink {name}: cannot read {source}: {error.strerror}",
                fix,
            ) from error
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            raise UnusableNotificationSinkError(
                f"cannot use the notification sink {name}: other users can read {source}, which "
                "holds credentials",
                f"run: chmod 0640 {source}",
            )
    url = url.strip()
    if not re.fullmatch(r"\w+://[!-~]+", url):
        fix = "write one URL of Apprise into it, such as json://host/path or slack://..."
        raise UnusableNotificationSinkError(
            f"cannot use the notification sink {name}: {source} must contain exactly one URL", fix
        )
    return url


def validate_notification_sink(name: str, source: str, *, reach: bool = False) -> None:
    """Raise UnusableNotificationSinkError where nothing can be sent. With `reach`, and where the
    URL has a host and not a service's tokens, a server answers there."""
    url = read_notification_sink_url(name, source)
    why = _send_apprise_notification(url, ["--dry-run", "--body=x"])
    if why:
        raise UnusableNotificationSinkError(
            f"cannot use the notification sink {name}: {why}",
            "check its URL: https://github.com/caronc/apprise/wiki",
        )
    at = _HOST.match(url)
    webhook, tls, host, given = at.groups() if at else ("", "", "", "")
    if reach and (webhook or given):
        port = parse_count(given or ("443" if tls else "80"))
        try:
            socket.create_connection((host, port), timeout=5).close()
        except (OSError, OverflowError, UnicodeError) as error:
            fix = "check that the service runs and that this host may connect to it"
            raise UnusableNotificationSinkError(
                f"the service of the notification sink {name} does not answer on port {port}: "
                f"{error}",
                fix,
            ) from error


def list_unusable_sink_errors(
    sinks: Mapping[str, str], *, reach: bool = False
) -> Iterator[UnusableNotificationSinkError]:
    """Yield what is wrong with each, see `check`."""
    for name, source in sinks.items():
        try:
            validate_notification_sink(name, source, reach=reach)
        except UnusableNotificationSinkError as error:
            yield error


def deliver_sink_message(name: str, source: str, message: NotificationMessage, to: str = "") -> str:
    """Send a message; why it was not, and empty where the sink has taken it. `to` stands where the
    URL has `{mail}`."""
    try:
        url = read_notification_sink_url(name, source).replace("{mail}", quote(to, safe=""))
    except UnusableNotificationSinkError as error:
        return f"{error}: {error.hint}"
    why = _send_apprise_notification(
        url, [f"--title={message.title}", "--input-format=text"], message.body
    )
    return why and f"sink {name}: {why}"


def send_mail_with_mail_program(program: str, message: NotificationMessage, to: str) -> str:
    """Send a message as slurmctld sends its own, by MailProg; why it was not."""
    return _run_command_and_describe_failure(
        [program, "-s", message.title, to], message.body, os.environ
    )


def parse_mail_address(text: str) -> str:
    """Return a user's name or address that a mail may go to; empty for any other text."""
    return text if _ADDRESS.fullmatch(text) else ""


def _send_apprise_notification(url: str, options: Sequence[str], body: str = "") -> str:
    if importlib.util.find_spec("apprise") is None:
        return "Apprise is not installed: pip install 'hpctl[notify]' on every head node"
    args = [sys.executable, "-c", _APPRISE, "-v", "--storage-mode=memory", *options]
    why = _run_command_and_describe_failure(args, body, {**os.environ, "APPRISE_URLS": url})
    secret = url.partition("://")[2]
    for word in re.findall(r"[^\s/:@?&=#,]{4,}", f"{secret} {unquote(secret)}"):
        why = why.replace(word, "***")
    return why


def _run_command_and_describe_failure(
    args: Sequence[str], body: str, env: Mapping[str, str]
) -> str:
    """Return why a command failed; empty where it did not."""
    try:
        ran = subprocess.run(
            args, input=body.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
            timeout=SEND_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer within {SEND_S:g} s"
    except OSError as error:
        return f"{args[0]}: {error.strerror}"
    output = ran.stdout.decode("utf-8", "replace").strip().splitlines() or ["it says nothing"]
    logged = next((line for line in output if " - " in line), output[-1])
    return "" if ran.returncode == 0 else logged.rpartition(" - ")[2][:300]
