"""The Provider on SageMaker HyperPod's cluster API. The only place that imports boto3.

Reads are retried here, by tenacity alone; mutations are sent once, with botocore's own retries
off, and every answer becomes an Outcome by the table of `classify`. Instances are addressed by
instance id, never by name or logical id: an accepted replacement ends the id, so a repeated
order cannot hit the fresh machine.

What makes a group larger, and takes instances out of it, is sent once. BatchAddClusterNodes needs
NodeProvisioningMode=Continuous and takes a client token, so that a repeat is no second order.
Elsewhere a group grows by UpdateCluster to an absolute size, which is no second order either; it
restates the group as it is, and is not sent where the group was made as large meanwhile.
Instances leave by BatchDeleteClusterNodes alone: UpdateCluster would choose them at random.

The addresses that ListClusterNodes does not tell: a head node's file, else DescribeClusterNode.

An instance keeps its address for life, so what is known of an id holds. HyperPod writes all of them
into resource_config.json on a head node, which costs no call; it may be older than the newest
instances. Those are asked for, each once, newest first: a replacement is known at once in a cluster
of ten thousand. Calls are rationed, and end with the first refusal.
"""

from __future__ import annotations

import json
import stat
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from msgspec.structs import replace
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from hpctl.sagemaker.aws import make_client_config, open_aws_session
from hpctl.sagemaker.classify import (
    THROTTLED,
    UNREADABLE,
    classify_aws_call_error,
    classify_batch_node_response,
    classify_failed_batch_entry,
    describe_software_update_fix,
    find_operator_hint_for_aws_error,
    format_aws_error,
    is_retryable_error,
    list_unsupported_operations,
)
from hpctl.sagemaker.update_cluster import IMAGES, make_group_update
from hpctl.toolkit.bounds import convert_to_utc, make_printable
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.threads import start_thread_pool
from hpctl.toolkit.token_bucket import TokenBucket
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance, InstanceGroup, InstanceStatus
from hpctl.vocabulary.identity import InstanceId, LogicalId, NodeName
from hpctl.vocabulary.instance_join import (
    guess_hyperpod_node_name,
    is_ip_address,
    parse_address_from_host_name,
)
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.outcome import Outcome, OutcomeKind

T = TypeVar("T")

A_SECOND = 10.0
"""Calls of DescribeClusterNode that are earned in a second; the service publishes no limit."""
AT_MOST = 100
"""Calls in one view, and how many are there at the start."""
AT_ONCE = 8
RESOURCE_CONFIG = Path("/opt/ml/config/resource_config.json")
CLOCK_TOLERANCE = timedelta(seconds=5)
"""Clocks that differ by less count as equal: `Date` has whole seconds, and an answer takes time."""
LONGEST = 64 << 20
"""Bytes of resource_config.json that are read: 10,000 instances with their labels are 3 MB."""


class InstanceAddressFile:
    """The address of each instance, as resource_config.json has it. For one thread."""

    def __init__(self, cluster: str, path: Path) -> None:
        self._cluster, self._path = cluster, path
        self._version: tuple[int, ...] = ()
        self._addresses: Mapping[InstanceId, str] = {}

    def addresses(self) -> Mapping[InstanceId, str]:
        """By instance id; none from another cluster's file. Read where it changed. Never raises."""
        try:
            at = self._path.stat()
            version = at.st_mtime_ns, at.st_size, at.st_ino
            if version != self._version and stat.S_ISREG(at.st_mode) and at.st_size <= LONGEST:
                self._version = version
                with self._path.open("rb") as file:
                    self._addresses = _parse_instance_addresses(
                        json.loads(file.read(LONGEST)), self._cluster
                    )
        except (OSError, ValueError, RecursionError):
            pass  # DescribeClusterNode tells what this does not; an address once read stays right
        return self._addresses


def _parse_instance_addresses(answer: Any, cluster: str) -> Mapping[InstanceId, str]:
    whose = _get_typed_value(answer, "ClusterConfig", dict)
    if cluster not in (whose.get("ClusterName"), whose.get("ClusterArn")):
        return {}
    found: dict[InstanceId, set[str]] = {}
    for group in _get_typed_value(answer, "InstanceGroups", list):
        for one in _get_typed_value(group, "Instances", list):
            key, address = (
                _get_typed_value(one, "InstanceId", str),
                _get_typed_value(one, "CustomerIpAddress", str),
            )
            if is_ip_address(address):
                found.setdefault(InstanceId(key), set()).add(address)
    return {key: those.pop() for key, those in found.items() if len(those) == 1}


def _get_typed_value(answer: Any, key: str, kind: type[T]) -> T:
    """Return a value of this kind; an empty one where there is none."""
    value = answer.get(key) if isinstance(answer, dict) else None
    return value if isinstance(value, kind) else kind()


class InstanceAddressResolver:
    """What is known of one cluster's instances beside their list. For one thread."""

    def __init__(
        self, cluster: str, describe: Callable[..., Mapping[str, Any]], file: Path = RESOURCE_CONFIG
    ) -> None:
        self._cluster, self._describe = cluster, describe
        self._file = InstanceAddressFile(cluster, file)
        self._known: dict[InstanceId, tuple[str, str]] = {}
        self._asked = Counter[InstanceId]()
        self._calls = TokenBucket(AT_MOST, A_SECOND)
        self._refused = False
        self._pool: ThreadPoolExecutor | None = None

    def complete(self, listed: Sequence[Instance]) -> list[Instance]:
        """Return the instances with their addresses, as far as these may be asked for. Never
        raises."""
        ids = {i.id for i in listed}
        self._known = {key: text for key, text in self._known.items() if key in ids}
        self._asked = Counter({key: n for key, n in self._asked.items() if key in ids})
        lacking = [i for i in listed if not i.address and i.id not in self._known]
        parts = self._file.addresses() if lacking else {}
        self._known |= {i.id: (parts[i.id], "") for i in lacking if i.id in parts}
        lacking = [i for i in lacking if i.id not in self._known]
        lacking.sort(key=lambda i: i.launched.timestamp() if i.launched else 0.0, reverse=True)
        lacking.sort(key=lambda i: self._asked[i.id])
        allowed = int(self._calls.available(time.monotonic()))
        self._ask([i.id for i in lacking[:allowed]])
        return [self._add_instance_address(i) for i in listed]

    def _ask(self, ids: Sequence[InstanceId]) -> None:
        if not ids:
            return
        self._calls.spend(time.monotonic(), len(ids))
        self._asked.update(ids)
        self._refused = False
        if self._pool is None:
            self._pool = start_thread_pool(AT_ONCE, "cloud-details")
        text = list(self._pool.map(self._read_instance_address, ids))
        self._known.update({key: one for key, one in zip(ids, text, strict=True) if one[0]})

    def _read_instance_address(self, instance: InstanceId) -> tuple[str, str]:
        """Return address and DNS name; nothing where it has none yet, is gone, or is unreadable."""
        if self._refused:
            return "", ""
        try:
            node = self._describe(ClusterName=self._cluster, NodeId=instance)["NodeDetails"]
            address, dns = node.get("PrivatePrimaryIp"), node.get("PrivateDnsHostname")
        except (BotoCoreError, ClientError, *UNREADABLE) as error:
            gone = isinstance(error, ClientError) and "NotFound" in str(error.response)
            self._refused |= not gone
            return "", ""
        return str(address or ""), str(dns or "")

    def _add_instance_address(self, instance: Instance) -> Instance:
        if instance.id not in self._known:
            return instance
        address, dns = self._known[instance.id]
        dns = instance.dns or dns
        guess = NodeName(guess_hyperpod_node_name(address, dns))
        return replace(instance, address=address, dns=dns, node=guess)


def classify_add_nodes_answer(group: str, count: int, answer: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a BatchAddClusterNodes call that answered: Accepted for some or all."""
    made = [n for n in answer.get("Successful") or () if n.get("InstanceGroupName") == group]
    if made:
        ids = ",".join(str(n["NodeLogicalId"]) for n in made)
        return Outcome.accepted(f"{len(made)} of {count}: {ids}")
    for failed in answer.get("Failed") or ():
        return classify_failed_batch_entry(failed)
    return Outcome.ambiguous("unanswered", "the group is in neither list")


def make_add_nodes_request(cluster: str, group: str, count: int, token: str) -> dict[str, Any]:
    """BatchAddClusterNodes."""
    wanted = {"InstanceGroupName": group, "IncrementTargetCountBy": count}
    return {"ClusterName": cluster, "ClientToken": token, "NodesToAdd": [wanted]}


def make_update_cluster_request(
    cluster: str, group: str, size: int, answer: Mapping[str, Any]
) -> dict[str, Any] | Outcome:
    """UpdateCluster to that size; or what there is to say instead.

    `answer` is DescribeCluster's answer of this moment. A group that was made as large meanwhile,
    or larger, is left as it is: a smaller size would have the service take nodes at random.
    """
    for known in answer.get("InstanceGroups", ()):
        if known["InstanceGroupName"] != group:
            continue
        same = {key: value for key, value in make_group_update(known).items() if key not in IMAGES}
        if same["InstanceCount"] >= size:
            return Outcome.accepted(f"{group} is set to {same['InstanceCount']} instances already")
        return {"ClusterName": cluster, "InstanceGroups": [{**same, "InstanceCount": size}]}
    return Outcome.rejected("InstanceGroupNotFound", f"no group {group}")


MAX_PAGES = 1000
"""Of a hundred nodes each: a longer listing is none of the service's."""
BATCH = 25
"""Instance ids that one BatchReplace- or BatchRebootClusterNodes call takes."""

PROTECTED_TYPES = frozenset({"Controller", "Login"})
"""SlurmConfig.NodeType of the groups whose nodes hpctl never treats."""

Answer = TypeVar("Answer")


_NOT_THE_SERVICE = (
    "another server than SageMaker answered:"
    " check cluster.endpoint_url in hpctl.yaml and HTTPS_PROXY"
)


class SageMakerProvider:
    """One HyperPod cluster, by name or ARN.

    `protected_groups` adds instance groups that are not to be touched; for a cluster without
    SlurmConfig (provisioning_parameters.json) the controller's group must be there, as the
    API does not say which it is. Raises HpctlError where no client can be made.
    """

    def __init__(  # noqa: PLR0913 -- settings of the client, by keyword with defaults
        self,
        cluster: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        protected_groups: Collection[str] = (),
        read_attempts: int = 5,
        read_timeout_s: float = 10.0,
        mutate_timeout_s: float = 30.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._protected_groups = frozenset(protected_groups)
        self._now = now
        self._ahead = timedelta()
        session = open_aws_session(region, profile, "cluster.profile")
        self.calls = Counter[tuple[str, str]]()
        self._read = _make_sagemaker_client(
            session, endpoint_url, read_timeout_s, self._record_api_call
        )
        self._mutate = _make_sagemaker_client(
            session, endpoint_url, mutate_timeout_s, self._record_api_call
        )
        self._details = InstanceAddressResolver(cluster, self._read.describe_cluster_node)
        self._retrying = Retrying(
            stop=stop_after_attempt(read_attempts),
            wait=wait_random_exponential(multiplier=0.2, max=3.0),
            retry=retry_if_exception(is_retryable_error),
            sleep=sleep,
            reraise=True,
        )

    def _record_api_call(
        self, event_name: str, parsed: Any = None, http_response: Any = None, **_: object
    ) -> None:
        """Count a call that ended, each attempt separately, and compare the service's clock."""
        code = _get_typed_value(_get_typed_value({"": parsed}, "", dict).get("Error"), "Code", str)
        result = "throttled" if code in THROTTLED else "error" if code or parsed is None else "ok"
        self.calls[event_name.rpartition(".")[2], result] += 1
        if result == "ok" and http_response is not None:
            self._ahead = measure_local_clock_lead(http_response.headers.get("Date"), self._now())

    def view(self) -> CloudProviderView:
        """Cluster and instances. Raises Unavailable, with what to do about it.

        `as_of` is the time before the first call: nothing in the view is older. A node that is
        still waiting for its instance has no id to act on and is left out.
        """
        try:
            return self._read_view()
        except UNREADABLE as error:
            text = f"{type(error).__name__}: {format_aws_error(error)}"
            raise ServiceUnavailable(
                f"cannot read SageMaker's answer: {text}", _NOT_THE_SERVICE
            ) from error

    def _read_view(self) -> CloudProviderView:
        as_of = self._now()
        cluster = self._describe()
        protected = self._protected_groups | {
            group["InstanceGroupName"]
            for group in cluster.get("InstanceGroups", ())
            if group.get("SlurmConfig", {}).get("NodeType") in PROTECTED_TYPES
        }
        summaries = list(
            self._list_node_summaries(continuous=_has_continuous_provisioning(cluster))
        )
        listed, flaws = parse_instances(summaries, protected, self._ahead)
        found = self._details.complete(listed)
        return CloudProviderView(
            as_of=as_of,
            present=True,
            # Automatic is the service's default; only an explicit None leaves the field to us.
            automatic=cluster.get("NodeRecovery") != "None",
            cluster_status=str(cluster.get("ClusterStatus", "")),
            instances={instance.id: instance for instance in found},
            continuous=_has_continuous_provisioning(cluster),
            groups=_parse_instance_groups(cluster),
            unpatched=list_unsupported_operations(cluster, summaries),
            flaws=tuple(flaws),
        )

    def _describe(self) -> Mapping[str, Any]:
        describe = self._read.describe_cluster
        answer: Mapping[str, Any] = self._call_with_retries(
            "DescribeCluster", lambda: describe(ClusterName=self._cluster)
        )
        return self._check_required_answer_field("DescribeCluster", answer, "ClusterStatus")

    def _list_node_summaries(self, *, continuous: bool) -> Iterator[Mapping[str, Any]]:
        """Yield every node summary. A cluster that refuses IncludeNodeLogicalIds is listed
        without."""
        token = ""
        for _ in range(MAX_PAGES):
            page = self._read_node_summary_page(token, continuous=continuous)
            if page is None:
                continuous = False
                continue
            key = "ClusterNodeSummaries"
            yield from self._check_required_answer_field("ListClusterNodes", page, key)[key]
            token = page.get("NextToken", "")
            if not token:
                return
        raise ServiceUnavailable(
            f"SageMaker's list of the nodes of cluster {self._cluster} did not end after "
            f"{MAX_PAGES} pages",
            _NOT_THE_SERVICE,
        )

    def _read_node_summary_page(self, token: str, *, continuous: bool) -> Mapping[str, Any] | None:
        request: dict[str, Any] = {"ClusterName": self._cluster, "MaxResults": 100}
        if continuous:
            request["IncludeNodeLogicalIds"] = True
        if token:
            request["NextToken"] = token
        list_nodes = self._read.list_cluster_nodes

        def call_list_nodes() -> Mapping[str, Any] | None:
            try:
                answer: Mapping[str, Any] = list_nodes(**request)
            except ClientError as error:
                refused = error.response["Error"].get("Code") == "ValidationException"
                if refused and continuous and not token:
                    return None
                raise
            return answer

        return self._call_with_retries("ListClusterNodes", call_list_nodes)

    def _call_with_retries(self, operation: str, call: Callable[[], Answer]) -> Answer:
        try:
            return self._retrying(call)
        except (BotoCoreError, ClientError, *UNREADABLE) as error:
            raise ServiceUnavailable(
                f"the call sagemaker:{operation} of cluster {self._cluster} failed: "
                f"{format_aws_error(error)}",
                find_operator_hint_for_aws_error(error, self._cluster, operation),
            ) from error

    def _check_required_answer_field(
        self, operation: str, answer: Mapping[str, Any], key: str
    ) -> Mapping[str, Any]:
        """Return the answer, which botocore leaves empty where a proxy's page came with status
        200."""
        if key in answer:
            return answer
        raise ServiceUnavailable(
            f"SageMaker's answer to sagemaker:{operation} of cluster {self._cluster} has no field "
            f"{key}",
            _NOT_THE_SERVICE,
        )

    def reboot(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """BatchRebootClusterNodes, 25 ids a call, each call once. Answers for every id."""
        return self._call_node_operation_in_batches(
            self._mutate.batch_reboot_cluster_nodes, instances
        )

    def replace(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """BatchReplaceClusterNodes, 25 ids a call, each call once. Answers for every id."""
        return self._call_node_operation_in_batches(
            self._mutate.batch_replace_cluster_nodes, instances
        )

    def add(self, group: str, count: int, size: int, token: str) -> Outcome:
        """BatchAddClusterNodes; UpdateCluster where the cluster is not Continuous."""
        try:
            fields = self._describe()
        except ServiceUnavailable as error:
            return Outcome.rejected("unavailable", str(error), transient=True)
        try:
            if _has_continuous_provisioning(fields):
                request = make_add_nodes_request(self._cluster, group, count, token)
                answer = self._mutate.batch_add_cluster_nodes(**request)
                return classify_add_nodes_answer(group, count, answer)
            update = make_update_cluster_request(self._cluster, group, size, fields)
            if isinstance(update, Outcome):
                return update
            self._mutate.update_cluster(**update)
        except (BotoCoreError, ClientError, *UNREADABLE) as error:
            return self._correct_outcome_by_cluster_status(classify_aws_call_error(error))
        return Outcome.accepted()

    def remove(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """BatchDeleteClusterNodes, 25 ids a call, each call once. Answers for every id."""
        return self._call_node_operation_in_batches(
            self._mutate.batch_delete_cluster_nodes, instances
        )

    def _call_node_operation_in_batches(
        self, call: Callable[..., Mapping[str, Any]], instances: Sequence[InstanceId]
    ) -> dict[InstanceId, Outcome]:
        outcomes: dict[InstanceId, Outcome] = {}
        wanted = list(dict.fromkeys(instances))
        for at in range(0, len(wanted), BATCH):
            chunk = wanted[at : at + BATCH]
            try:
                outcomes.update(
                    classify_batch_node_response(
                        chunk, call(ClusterName=self._cluster, NodeIds=chunk)
                    )
                )
            except (BotoCoreError, ClientError, *UNREADABLE) as error:
                outcome = self._correct_outcome_by_cluster_status(
                    classify_aws_call_error(error), error
                )
                outcomes.update(dict.fromkeys(chunk, outcome))
        return outcomes

    def _correct_outcome_by_cluster_status(
        self, outcome: Outcome, error: Exception | None = None
    ) -> Outcome:
        """A ValidationException while the cluster is not InService is only *not now*.

        The service refuses replace and reboot then, and its model has no special code for it.
        Nor has it for a cluster that is older than the order: the outcome says what is missing.
        """
        refused = outcome.kind is OutcomeKind.REJECTED and outcome.code == "ValidationException"
        if not refused:
            return outcome
        try:
            cluster = self._describe()
            status = str(cluster.get("ClusterStatus", ""))
            order = error.operation_name if isinstance(error, ClientError) else ""
            old = status == "InService" and order in self._list_unsupported_operations(cluster)
        except ServiceUnavailable:
            return outcome
        if old:
            return Outcome.rejected(
                outcome.code, f"{outcome.detail} ({describe_software_update_fix(self._cluster)})"
            )
        if status == "InService":
            return outcome
        detail = f"{outcome.detail} (the cluster is {status})"
        return Outcome.rejected(outcome.code, detail, transient=True)

    def _list_unsupported_operations(self, cluster: Mapping[str, Any]) -> tuple[str, ...]:
        """Return as `unpatched`; nodes are listed only where the cluster is old enough for it."""
        if not list_unsupported_operations(cluster, ()):
            return ()
        return list_unsupported_operations(
            cluster, self._list_node_summaries(continuous=_has_continuous_provisioning(cluster))
        )


def _make_sagemaker_client(
    session: boto3.session.Session,
    endpoint_url: str | None,
    timeout_s: float,
    called: Callable[..., None],
) -> Any:
    config = make_client_config(1, timeout_s)
    try:
        client: Any = session.client("sagemaker", endpoint_url=endpoint_url, config=config)
    except (BotoCoreError, ValueError) as error:
        raise HpctlError(
            f"cannot create a client for SageMaker: {error}",
            "set the AWS region (and profile) in hpctl.yaml, or the region in AWS_REGION",
        ) from error
    for event in ("after-call", "after-call-error"):
        client.meta.events.register(event, called)
    return client


def _has_continuous_provisioning(cluster: Mapping[str, Any]) -> bool:
    return cluster.get("NodeProvisioningMode") == "Continuous"


def _parse_instance_groups(cluster: Mapping[str, Any]) -> dict[str, InstanceGroup]:
    return {
        str(group["InstanceGroupName"]): InstanceGroup(
            name=str(group["InstanceGroupName"]),
            instance_type=str(group.get("InstanceType", "")),
            current=int(group.get("CurrentCount", 0)),
            target=int(group.get("TargetCount", 0)),
            status=str(group.get("Status", "")),
        )
        for group in cluster.get("InstanceGroups", ())
    }


def measure_local_clock_lead(date: str | None, now: datetime) -> timedelta:
    """Return by how much this host's clock is ahead of the one in an answer's `Date` header.

    Zero where the two agree within CLOCK_TOLERANCE, and where the header cannot be read.
    """
    try:
        lead = now - convert_to_utc(parsedate_to_datetime(date or ""))
    except (TypeError, ValueError, OverflowError):
        return timedelta()
    return lead if CLOCK_TOLERANCE <= abs(lead) <= timedelta(days=1) else timedelta()


def parse_instances(
    summaries: Iterable[Mapping[str, Any]],
    protected: Collection[str],
    ahead: timedelta = timedelta(),
) -> tuple[list[Instance], list[ItemProcessingFailure]]:
    """Return the instances of ListClusterNodes, and those that cannot be read, by their node.

    `ahead`: by how much this host's clock is ahead of the service's.
    """
    return process_items_capturing_failures(
        "parse",
        (summary for summary in summaries if summary.get("InstanceId")),
        _parse_private_host_name,
        lambda summary: _make_instance(summary, protected, ahead),
    )


_STATUS_CHARS: Final = 64
"""How much of a status that hpctl does not know is shown."""


def _parse_private_host_name(summary: Mapping[str, Any]) -> str:
    return str(summary.get("PrivateDnsHostname", "")).partition(".")[0]


def _make_instance(
    summary: Mapping[str, Any], protected: Collection[str], ahead: timedelta
) -> Instance:
    status, message = _parse_instance_status(summary.get("InstanceStatus", {}))
    dns, launched = str(summary.get("PrivateDnsHostname") or ""), summary.get("LaunchTime")
    logical = summary.get("NodeLogicalId")
    group = make_printable(str(summary["InstanceGroupName"]))
    return Instance(
        id=InstanceId(make_printable(str(summary["InstanceId"]))),
        status=status,
        group=group,
        node=NodeName(guess_hyperpod_node_name("", dns)) if dns else None,
        logical_id=LogicalId(make_printable(str(logical))) if logical else None,
        protected=group in protected,
        message=message,
        launched=convert_to_utc(launched) + ahead if isinstance(launched, datetime) else None,
        address=parse_address_from_host_name(dns),
        dns=dns,
    )


def _parse_instance_status(status: Mapping[str, Any]) -> tuple[InstanceStatus, str]:
    """Return the status and its message. Prose and older answers say Failed where the model says
    Failure.

    A word that the model does not have yet is UNKNOWN: something may be done to the instance, so
    it is not in service, and hpctl does nothing to it.
    """
    word, message = str(status.get("Status", "")), make_printable(str(status.get("Message", "")))
    if word == "Failed":
        return InstanceStatus.FAILURE, message
    try:
        return InstanceStatus(word), message
    except ValueError:
        said = make_printable(word[:_STATUS_CHARS])
        return InstanceStatus.UNKNOWN, f"status {said!r} is not known to hpctl. {message}".strip()
