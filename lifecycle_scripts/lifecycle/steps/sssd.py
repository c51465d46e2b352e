"""Users from a directory: SSSD with LDAP. Off by default.

The password that it binds with is in a file of the node or in Secrets Manager, never in the
bundle; it is written into sssd.conf, which root alone reads, and printed nowhere.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from lifecycle.accounts import account
from lifecycle.failure import Failure
from lifecycle.machine import holds
from lifecycle.node import Node
from lifecycle.packages import install, whole
from lifecycle.secret import secret

UNIT = "sssd.service"
PACKAGES = ["sssd-ldap", "libnss-sss", "libpam-sss"]
CONF = "/etc/sssd/sssd.conf"
CA = "/etc/sssd/hpctl-ca.pem"
SUDO = "/etc/sudoers.d/hpctl-sssd"
SESSION = "/etc/pam.d/common-session"
NSS = "/etc/nsswitch.conf"
ANSWER_S = 60.0


def applies(node: Node) -> Any:
    """Return whether there are systemd and accounts."""
    return node.machine.needs("systemd", "accounts")


def _own(node: Node) -> dict[str, Any]:
    return dict(node.config["sssd"])


def _conf(node: Node, password: str) -> str:
    own = _own(node)
    domain = {
        "id_provider": "ldap",
        "auth_provider": "ldap",
        "ldap_uri": own["uri"],
        "ldap_search_base": own["search_base"],
        "ldap_schema": own["schema"],
        "cache_credentials": "True",
        "ldap_tls_reqcert": "demand",
        # By ldap:// the password would cross the network as it is.
        "ldap_id_use_start_tls": str(own["uri"].startswith("ldap://")),
        "override_homedir": own["home"],
        "default_shell": "/bin/bash",
    }
    if own["bind_dn"]:
        domain["ldap_default_bind_dn"] = own["bind_dn"]
        domain["ldap_default_authtok"] = password
    if own["ca_file"]:
        domain["ldap_tls_cacert"] = CA
    if own["allow_groups"]:
        domain["access_provider"] = "simple"
        domain["simple_allow_groups"] = ", ".join(own["allow_groups"])
    domain.update(own["options"])
    lines = ["# Written by hpctl at the node's birth.", "[sssd]", "services = nss, pam"]
    lines += ["domains = directory", "", "[domain/directory]"]
    return "\n".join([*lines, *(f"{key} = {word}" for key, word in domain.items())]) + "\n"


def _kept(node: Node) -> str:
    """Return the password that sssd.conf has: whether it is done must not need Secrets Manager."""
    path = node.machine.path(CONF)
    text = path.read_text() if path.is_file() else ""
    found = re.search(r"(?m)^ldap_default_authtok = (.*)$", text)
    return found.group(1) if found else ""


def _password(node: Node) -> str:
    """Raises Failure where it cannot be had, or is none that sssd.conf can hold."""
    own = _own(node)
    if not own["bind_dn"]:
        return ""
    if own["secret_arn"]:
        found, where = secret(node, own["secret_arn"]), own["secret_arn"]
    else:
        where = own["password_file"]
        try:
            found = node.machine.path(where).read_text().rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"sssd.password_file {where}: {error}") from error
    if not found or found != found.strip() or "\n" in found:
        raise Failure(f"{where} holds no password of one line without blanks around it")
    return found


def _sudo(node: Node) -> str:
    return "".join(f"%{group} ALL=(ALL:ALL) NOPASSWD:ALL\n" for group in _own(node)["sudo_groups"])


def _nss(text: str) -> str:
    """nsswitch.conf that asks SSSD last; Debian's package sees to it, unless it was killed."""
    return re.sub(r"(?m)^(passwd|group|shadow):(?!.*\bsss\b)(.*)$", r"\1:\2 sss", text)


def done(node: Node) -> bool:
    """SSSD runs with this configuration, and NSS and PAM ask it."""
    machine, own = node.machine, _own(node)
    nss, session = machine.path(NSS), machine.path(SESSION)
    return (
        holds(machine.path(CONF), _conf(node, _kept(node)))
        and bool(_kept(node)) == bool(own["bind_dn"])
        and (not own["ca_file"] or holds(machine.path(CA), _ca(node)))
        and (not own["sudo_groups"] or holds(machine.path(SUDO), _sudo(node)))
        and nss.is_file()
        and _nss(nss.read_text()) == nss.read_text()
        and session.is_file()
        and "pam_mkhomedir" in session.read_text()
        and whole(node, PACKAGES)
        and machine.up(UNIT)
        and _answers(node)
    )


def _ca(node: Node) -> str:
    path: Path = node.bundle / _own(node)["ca_file"]
    if not path.is_file():
        raise Failure(f"sssd.ca_file: {path.name} is not in the bundle: add it with --add")
    return path.read_text()


def _answers(node: Node) -> bool:
    """Return whether the directory has the user that config.json names; SSSD is active without it,
    too."""
    name = _own(node)["probe_user"]
    return not (name and node.machine.running) or account(name) is not None


def run(node: Node) -> None:
    """Packages, certificate, sssd.conf, NSS, homes made at the first login, sudo, the daemon."""
    machine, password = node.machine, _password(node)
    ca = _ca(node) if _own(node)["ca_file"] else ""
    if not (machine.has_unit(UNIT) and whole(node, PACKAGES)):
        install(node, "sssd", PACKAGES)
    if ca:
        machine.write(machine.path(CA), ca)
    machine.write(machine.path(CONF), _conf(node, password), 0o600)
    nss = machine.path(NSS)
    machine.write(nss, _nss(nss.read_text()))
    machine.run("pam-auth-update", "--enable", "mkhomedir")
    if _own(node)["sudo_groups"]:
        machine.write(machine.path(SUDO), _sudo(node), 0o440)
    machine.start(UNIT, again=True)
    deadline = time.monotonic() + ANSWER_S
    while not _answers(node):
        if time.monotonic() > deadline:
            own = _own(node)
            raise Failure(
                f"{own['uri']} has no user {own['probe_user']} below {own['search_base']}, or "
                "does not answer: look at /var/log/sssd"
            )
        time.sleep(1)
