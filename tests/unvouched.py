"""MUNGE's two calls without munged, for tests that are about something else.

`python -m tests.unvouched ARGS` runs hpctl with them; a test that plays the head node patches
them into its own process. Whoever asks is believed to be root on node n1.
"""

import base64
from datetime import datetime
from ipaddress import IPv4Address

from hpctl.core.compat import UTC
from hpctl.protocol import munge
from tests.munged import ADDRESSES


def encode(payload: bytes, socket: object = None, **_: object) -> str:
    return base64.b64encode(payload).decode()


def decode(cred: str, socket: object = None, **_: object) -> munge.Credential:
    return munge.Credential(
        0, 0, IPv4Address(ADDRESSES["n1"]), base64.b64decode(cred), datetime.now(UTC), 300
    )


if __name__ == "__main__":
    munge.encode, munge.decode = encode, decode  # type: ignore[assignment]
    from hpctl.cli.main import main

    main()
