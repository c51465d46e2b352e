"""MUNGE credentials against real munged daemons."""

import os
import threading
from datetime import datetime
from ipaddress import IPv4Address

import pytest

from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.wire import munge
from tests.munged import Realm

pytestmark = pytest.mark.slurm


def test_a_credential_says_who_where_when_and_what(munges: Realm) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    credential = munge.decode_munge_credential(
        munge.encode_munge_credential(b"a\0payload", munges.n1), munges.head
    )
    assert (credential.payload, credential.address) == (b"a\0payload", IPv4Address("127.0.1.2"))
    assert (credential.uid, credential.gid) == (os.geteuid(), os.getegid())
    assert before <= credential.encode_time <= datetime.now(UTC)
    assert credential.ttl == 300


def test_a_credential_is_good_once(munges: Realm) -> None:
    cred = munge.encode_munge_credential(b"x", munges.n1)
    munge.decode_munge_credential(cred, munges.head)
    with pytest.raises(munge.MungeCredentialError) as caught:
        munge.decode_munge_credential(cred, munges.head)
    assert caught.value.code == "replayed_credential"


def test_another_key_is_a_forgery(munges: Realm) -> None:
    with pytest.raises(munge.MungeCredentialError) as caught:
        munge.decode_munge_credential(
            munge.encode_munge_credential(b"x", munges.stranger), munges.head
        )
    assert caught.value.code == "invalid_credential"
    assert "munge.key" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["", "nonsense", "MUNGE:", "MUNGE:AAAA:", "MUNGE:é:", "x" * 100_000]
)
def test_nonsense_is_invalid(munges: Realm, text: str) -> None:
    with pytest.raises(munge.MungeCredentialError) as caught:
        munge.decode_munge_credential(text, munges.head)
    assert caught.value.code == "invalid_credential"


def test_munged_away_is_unavailable_and_says_where(tmp_path) -> None:
    for ask in (munge.encode_munge_credential, munge.decode_munge_credential):
        with pytest.raises(ServiceUnavailable, match="none") as caught:
            ask(b"x" if ask is munge.encode_munge_credential else "MUNGE:AA:", tmp_path / "none")
        assert "systemctl status munge" in caught.value.hint


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (14, "invalid_credential"), (15, "expired_credential"), (16, "rewound_credential"),
        (17, "replayed_credential"), (18, "unauthorized_credential"),
    ],
)  # fmt: skip
def test_munges_error_numbers_are_the_librarys(number: int, code: str) -> None:
    word = munge._load_munge_library().munge_strerror(number).decode().lower()
    assert word == f"{code.removesuffix('_credential')} credential"
    with munge._MungeContext(None) as context, pytest.raises(munge.MungeCredentialError) as caught:
        context.check(number)
    assert caught.value.code == code


def test_threads_do_not_mix_credentials_up(munges: Realm) -> None:
    seen: dict[bytes, bytes] = {}

    def work(number: int) -> None:
        for turn in range(40):
            payload = f"{number}-{turn}".encode()
            seen[payload] = munge.decode_munge_credential(
                munge.encode_munge_credential(payload, munges.n1), munges.head
            ).payload

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(seen) == 160
    assert all(payload == got for payload, got in seen.items())
