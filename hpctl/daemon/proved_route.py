"""A POST whose sender MUNGE proves, and whose answer the daemon proves in turn.

| status | code | meaning |
|---|---|---|
| 401, 409, 503 | as for `/v1/reports` | the credential, or munged (see gatekeeper.py) |
| 413, 408 | too_large, slow_body | more bytes than the route takes, or not here within 5 s |
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from prometheus_client import Counter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hpctl.daemon.body import read_body
from hpctl.daemon.gatekeeper import IntakeSettings, verified
from hpctl.daemon.refusal import Refusal
from hpctl.protocol import munge
from hpctl.protocol import reports as wire

BODY_TIMEOUT_S: Final = 5.0

Told = Callable[[bytes, munge.Credential], Awaitable[bytes]]
"""The answer to a body that its sender's credential proves. Raises Refusal."""


def proved_route(path: str, most: int, settings: IntakeSettings, told: Told, no: Counter) -> Route:
    """A route for bodies of at most `most` bytes. `no` counts refusals by their code."""
    too_large = Refusal(413, "too_large", f"at most {most} bytes are taken at {path}")

    async def post(request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        announced = request.headers.get("content-length", "0")
        credential: munge.Credential | None = None
        headers = {}
        try:
            body = await read_body(
                announced,
                request.receive,
                most=most,
                within_s=BODY_TIMEOUT_S,
                too_large=too_large,
            )
            credential = await run_in_threadpool(
                verified, authorization, body, settings.munge_socket
            )
            status, answer = 200, await told(body, credential)
        except Refusal as refusal:
            no.labels(refusal.code).inc()
            status, answer = refusal.status, refusal.as_json
            if status in (408, 413):
                headers["connection"] = "close"
        if credential is not None:
            said = wire.answered(authorization, status, answer)
            prove = partial(settings.prove, credential.uid)
            headers[wire.PROOF_HEADER] = await run_in_threadpool(prove, said)
        return Response(answer, status, headers, "application/json")

    return Route(path, post, methods=["POST"])
