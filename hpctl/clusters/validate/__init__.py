"""Everything that can be known of a cluster's file before it costs money.

`validate` gathers facts in parallel, then judges, and returns every verdict at once. A family
(`network`, `role`, `storage`, ...) is one module with the calls that gather its facts and the
checks that read them; `facts` holds the facts, `wanted` what the file asks of an account. Checks
are pure functions; a call that fails makes its verdicts UNKNOWN.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from hpctl.clusters.spec import ClusterSpec
from hpctl.clusters.validate import capacity, living, network, role, scripts, spec_rules, storage
from hpctl.clusters.validate.facts import (
    SageMakerServiceModel,
    SpecCheckFamily,
    SpecValidationFacts,
)
from hpctl.clusters.validate.wanted import (
    CheckLevel,
    FindingWithCheck,
    RequestedCluster,
    build_requested_cluster,
)
from hpctl.vocabulary.ports import AwsClientFactory

__all__ = ["FAMILIES", "CheckLevel", "FindingWithCheck", "validate_spec"]

FAMILIES: tuple[SpecCheckFamily, ...] = (
    spec_rules.FAMILY,
    scripts.FAMILY,
    living.FAMILY,
    network.FAMILY,
    network.GROUPS,
    capacity.CAPACITY,
    storage.FAMILY,
    scripts.BUCKET,
    role.FAMILY,
    capacity.QUOTAS,
)
"""In the order in which they are shown."""

GATHERS: Mapping[str, Callable[[AwsClientFactory, RequestedCluster], Any]] = {
    "network": network.gather_network_facts,
    "storage": storage.gather_file_system_facts,
    "bucket": scripts.gather_lifecycle_bucket_facts,
    "role": role.gather_execution_role_facts,
    "quota": capacity.gather_service_quota_facts,
    "capacity": capacity.gather_capacity_facts,
    "living": living.gather_existing_cluster_facts,
}
"""Who fills which part of the facts. `scripts` is read from disk, `model` from the SDK."""

AT_ONCE = 8
"""Parts that are gathered side by side."""

Report = Callable[[str, int, int], None]
"""Called after each part: its name, how many are done, how many there are."""


def validate_spec(  # noqa: PLR0913 -- each source of facts may be missing independently
    aws: AwsClientFactory | None,
    spec: ClusterSpec,
    *,
    model: SageMakerServiceModel | None = None,
    directory: Path | None = None,
    only: Collection[str] = (),
    report: Report = lambda _name, _done, _all: None,
) -> tuple[FindingWithCheck, ...]:
    """What every check says of a spec, in the families' order.

    Without `aws` only what needs no credentials is checked, without `model` or the
    `directory` of the scripts nothing that needs them. `only` names families. A call that fails
    makes verdicts UNKNOWN. Raises HpctlError where no region is named, OSError where the directory
    cannot be read.
    """
    chosen = [f for f in FAMILIES if (not only or f.name in only) and (aws or f.offline)]
    needs = set(chain.from_iterable(family.needs for family in chosen))
    wants = build_requested_cluster(spec)
    facts = SpecValidationFacts(region=aws.region if aws else "")
    if model and "model" in needs:
        facts = replace(facts, model=spec_rules.gather_service_model_facts(model, wants.request))
    if directory and "scripts" in needs:
        facts = replace(facts, scripts=scripts.gather_local_lifecycle_script_facts(directory))
    if aws:
        facts = _gather_spec_facts(aws, wants, facts, sorted(needs & GATHERS.keys()), report)
    return tuple(chain.from_iterable(family.verdicts(wants, facts) for family in chosen))


def _gather_spec_facts(
    aws: AwsClientFactory,
    wants: RequestedCluster,
    facts: SpecValidationFacts,
    parts: Sequence[str],
    report: Report,
) -> SpecValidationFacts:
    found = {}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="validate") as pool:
        asked = {pool.submit(GATHERS[part], aws, wants): part for part in parts}
        for done in as_completed(asked):
            found[asked[done]] = done.result()
            report(asked[done], len(found), len(parts))
    return replace(facts, **found)
