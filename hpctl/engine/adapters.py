"""The only place that knows every adapter: a configuration in, ports out."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING

from hpctl.engine.journal.source import make_sqlite_url
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary.ports import AwsClientFactory, CloudProvider

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpctl.engine.config import Config
    from hpctl.engine.journal.reader import JournalReader
    from hpctl.engine.journal.store import JournalStore
    from hpctl.faults.catalogue import FaultRules
    from hpctl.slurm.cli import CliScheduler


COPY_S = 10.0
"""How long a copy of the journal may take."""


def open_journal_writer(config: Config) -> JournalStore:
    """Open the journal to write it. Raises Unavailable, CorruptJournalError; HpctlError where a
    database that several heads share is another cluster's."""
    from hpctl.engine.journal.store import JournalStore

    store = JournalStore(config.url)
    try:
        name = _get_expected_journal_cluster(config)
        if name:
            store.claim(name)
    except BaseException:
        store.close()
        raise
    return store


def open_journal_reader(config: Config) -> JournalReader:
    """Open the journal to read it; for users who may not write it, a copy that the daemon makes of
    it. For one thread. Raises as `open_journal_writer`."""
    from hpctl.engine.journal.reader import open_journal_for_reading

    reader = open_journal_for_reading(find_readable_journal_url(config))
    try:
        name = _get_expected_journal_cluster(config)
        if name:
            reader.check_cluster(name)
    except BaseException:
        reader.close()
        raise
    return reader


def _get_expected_journal_cluster(config: Config) -> str:
    """Return the cluster that a shared database must be of; empty for a journal in a file."""
    if not config.database_url:
        return ""
    return config.cluster.name or read_slurm_cluster_name(config.slurm.conf)


def find_readable_journal_url(config: Config) -> str:
    """Return the journal's URL; for users who may not write it, that of a copy. Raises
    Unavailable."""
    path = _find_sqlite_journal_file(config)
    return make_sqlite_url(path) if path else config.url


def read_slurm_cluster_name(conf: Path | None) -> str:
    """ClusterName of slurm.conf; empty where there is none to read."""
    from hpctl.wire.heads import find_slurm_conf

    path = conf or find_slurm_conf()
    if path is None:
        return ""
    with contextlib.suppress(OSError):
        text = path.read_text(errors="replace")
        named = re.findall(r"(?im)^[ \t]*ClusterName[ \t]*=[ \t]*([^\s#]+)", text)
        if named:
            return str(named[-1]).lower()[:64]
    return ""


def _find_sqlite_journal_file(config: Config) -> Path | None:
    """Return the SQLite file to read, None where the journal is elsewhere. Raises Unavailable."""
    path = config.state_dir / "journal.db"
    if config.database_url:
        return None
    if not path.exists():
        raise ServiceUnavailable(
            f"hpctl has no journal on this machine: {path} does not exist",
            "run the command on the head node; if the daemon never ran there, start it (`hpctl "
            "daemon run`); for another configuration use --config",
        )
    return path if os.access(path, os.W_OK) else _fetch_journal_copy(config, path)


def _fetch_journal_copy(config: Config, journal: Path) -> Path:
    """Return the copy of the journal; an old one where no daemon answers. Raises Unavailable."""
    import http.client

    from hpctl.wire import reports as wire
    from hpctl.wire.heads import HeadNodeAddress, format_refusal_response

    copy = wire.make_public_journal_copy_path(journal)
    until = time.monotonic() + COPY_S
    try:
        head, munge_socket = HeadNodeAddress.here(config.intake.listen), config.intake.munge_socket
        status, answer = head.post(wire.COPY_PATH, b"{}", until, munge_socket)
        why = "" if status == http.client.OK else format_refusal_response(answer)
    except (OSError, http.client.HTTPException, ServiceUnavailable) as error:
        why = str(error)
    if why and not copy.exists():
        raise ServiceUnavailable(
            "cannot read hpctl's journal: this user may not read the file, and the daemon did "
            f"not answer: {why}",
            "check the daemon (systemctl status hpctl-daemon), or run the command as root",
        )
    return copy


def make_slurm_command_client(config: Config) -> CliScheduler:
    """Slurm for a command that reads it once: by its commands, which start sooner than pyslurm."""
    from hpctl.slurm.cli import CliScheduler
    from hpctl.slurm.run import SlurmCommandRunner

    slurm = config.slurm
    return CliScheduler(SlurmCommandRunner(slurm.conf, slurm.bin, slurm.timeout_s))


def choose_slurm_client_for_daemon(
    config: Config,
    *,
    may_act: Callable[[], bool] = lambda: True,
    event: Callable[[], bool] | None = None,
) -> tuple[CliScheduler, str]:
    """Slurm for the daemon: pyslurm where it imports and matches, the commands everywhere else;
    and which it is and why. slurmctld is not asked.

    `may_act` is asked immediately before each order, `event` while many nodes are read: see
    `hpctl.slurm.read.SlurmCommandReader`.
    """
    from hpctl.slurm.cli import CliScheduler
    from hpctl.slurm.run import SlurmCommandRunner

    slurm, wanted = config.slurm, config.slurm.adapter
    runner = SlurmCommandRunner(slurm.conf, slurm.bin, slurm.timeout_s)
    cli = CliScheduler(runner, event=event, may_act=may_act)
    if wanted == "cli":
        return cli, "cli, as slurm.adapter says"
    from hpctl.slurm.pyslurm import PySlurmScheduler

    pyslurm = PySlurmScheduler(runner, event=event, may_act=may_act)
    why_not = pyslurm.explain_why_pyslurm_is_unusable()
    if not why_not:
        return pyslurm, f"pyslurm (slurm.adapter: {wanted})"
    pyslurm.close()
    if wanted == "pyslurm":
        raise HpctlError(
            f"hpctl.yaml sets slurm.adapter to pyslurm, but {why_not}",
            "set slurm.adapter: cli in hpctl.yaml",
        )
    return cli, f"cli (slurm.adapter: auto), for {why_not}"


def make_cloud_provider(config: Config) -> CloudProvider:
    """Return the cloud, or the lack of one."""
    cluster = config.cluster
    if cluster.provider == "none":
        from hpctl.sagemaker.no_provider import NoProvider

        return NoProvider()
    from hpctl.sagemaker.provider import SageMakerProvider

    return SageMakerProvider(
        cluster.name,
        region=cluster.region,
        endpoint_url=cluster.endpoint_url,
        profile=cluster.profile,
        protected_groups=cluster.protected_groups,
    )


def build_fault_rules_with_overrides(config: Config) -> FaultRules:
    """Return the catalogue with the site's overrides. Raises HpctlError for a rule it does not
    have."""
    from hpctl.faults.catalogue import UnknownRuleError
    from hpctl.faults.catalogue import build_fault_rules as catalogue_rules

    try:
        return catalogue_rules(config.catalogue, silent_after_s=config.ages.silent_s)
    except UnknownRuleError as error:
        raise HpctlError(f"the catalogue of faults is not valid: {error}", error.hint) from error
    except ValueError as error:
        raise HpctlError(
            f"the catalogue of faults is not valid: {error}",
            "fix the file as docs/catalogue.md describes",
        ) from error


def make_aws_account_client(
    profile: str | None = None, region: str | None = None, endpoint_url: str | None = None
) -> AwsClientFactory:
    """Return an AWS account for an operator's command. Nothing is asked yet. Raises HpctlError."""
    from hpctl.sagemaker.aws import AwsAccount

    return AwsAccount(profile, region, endpoint_url)
