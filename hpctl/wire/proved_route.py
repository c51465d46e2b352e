"""A route of the intake whose caller proves who it is by MUNGE."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Send

from hpctl.wire import munge
from hpctl.wire import reports as wire
from hpctl.wire.authentication import (
    IntakeAuthenticationSettings,
    RequestBodyLimits,
    RequestRefusal,
    read_request_body,
    verify_munge_body_credential,
)

BODY_TIMEOUT_S = 10.0


_PROOF = wire.PROOF_HEADER.lower().encode()


AnswerT = TypeVar("AnswerT")


_JSON = (b"content-type", b"application/json")


POST_TIMEOUT_S: Final = 5.0


MOST_CODES: Final = 6
"""Codes of one counter that have a series of their own; the others share one."""


class RequestRefusalCounter:
    """How often something was refused, by code."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._counter = Counter(name, text, ["code"], registry=registry)
        self._codes: set[str] = set()

    def add(self, code: str) -> None:
        """Count one more."""
        if len(self._codes) < MOST_CODES:
            self._codes.add(code)
        self._counter.labels(code if code in self._codes else "other").inc()


Answer = Callable[[bytes, munge.Credential], Awaitable[bytes]]
"""The answer to a body that its sender's credential proves. Raises Refusal."""


def make_authenticated_post_route(
    path: str,
    most: int,
    settings: IntakeAuthenticationSettings,
    answer_to: Answer,
    refused: RequestRefusalCounter,
) -> Route:
    """Make a route for bodies of at most `most` bytes. `refused` counts what is refused."""

    async def handle_post(request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        credential: munge.Credential | None = None
        headers = {}
        try:
            body = await read_request_body(
                request.headers.get("content-length", "0"),
                request.receive,
                RequestBodyLimits(
                    most=most,
                    within_s=POST_TIMEOUT_S,
                    too_large=f"at most {most} bytes are taken at {path}",
                ),
            )
            settings.leading.check()
            credential = await run_in_threadpool(
                verify_munge_body_credential, authorization, body, settings.munge_socket
            )
            status, answer = 200, await answer_to(body, credential)
        except RequestRefusal as refusal:
            refused.add(refusal.code)
            status, answer = refusal.status, refusal.as_json
            if status in (408, 413, 421):
                headers["connection"] = "close"
        if credential is not None:
            answered = wire.make_answer_proof_payload(authorization, status, answer)
            prove = partial(settings.prove, credential.uid)
            headers[wire.PROOF_HEADER] = await run_in_threadpool(prove, answered)
        return Response(answer, status, headers, "application/json")

    return Route(path, handle_post, methods=["POST"])


async def send_asgi_response(
    send: Send, status: int, body: bytes, proof: str, *, close: bool
) -> None:
    """Send one whole response, with the proof where there is one."""
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    if proof:
        headers.append((_PROOF, proof.encode()))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
