"""Ask the agent from a script's process, with only the standard library, because prologs must be
short."""

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from hpctl.toolkit.errors import HpctlError, ServiceUnavailable

SOCKET = "/run/hpctl/agent.sock"
SOCKET_VARIABLE = "HPCTL_AGENT_SOCKET"
TIMEOUT_S = 0.5
_ANSWER_BYTES = 256 * 1024


class AgentRequestRefusedError(HpctlError):
    """The error of an agent that refuses a request. `code` is its reason."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


def send_agent_request(
    path: str, request: Mapping[str, object], timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Return the agent's answer to one request, in `timeout_s` at most.

    Raises Unavailable where no agent answers, AgentRequestRefusedError where it refuses.
    """
    line = json.dumps(request).encode() + b"\n"
    end = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout_s)
            link.connect(os.fspath(path))
            with contextlib.suppress(BrokenPipeError):  # it has already refused
                link.sendall(line)
            answer = _read_agent_answer(link, end)
    except TimeoutError as error:
        raise ServiceUnavailable(
            f"hpctl's agent on this node did not answer within {timeout_s:g} s at the socket "
            f"{path}",
            "Check it: systemctl status hpctl-agent",
        ) from error
    except OSError as error:
        hint = (
            "Run the command as root: only root may send requests to the agent."
            if isinstance(error, PermissionError)
            else _START
        )
        raise ServiceUnavailable(
            f"hpctl's agent on this node does not answer at the socket {path}: "
            f"{error.strerror or error}",
            hint,
        ) from error
    try:
        reply = json.loads(answer)
        if "error" in reply:
            raise AgentRequestRefusedError(
                str(reply["error"]), str(reply["message"]), str(reply.get("hint", ""))
            )
        return dict(reply)
    except (ValueError, TypeError, KeyError) as error:
        raise ServiceUnavailable(
            f"another program than hpctl's agent answers at the socket {path}",
            "Give the agent's socket with --socket.",
        ) from error


_START = "Check that the agent runs: systemctl status hpctl-agent"


def _read_agent_answer(link: socket.socket, end: float) -> bytes:
    """Return everything up to the end of the answer. Raises TimeoutError at `end`."""
    got = bytearray()
    while not got.endswith(b"\n") and len(got) < _ANSWER_BYTES:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        link.settimeout(left)
        chunk = link.recv(65536)
        if not chunk:
            break
        got += chunk
    return bytes(got)
