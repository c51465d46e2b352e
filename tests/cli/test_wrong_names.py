"""One rule for wrong arguments (docs/cli.md): what is no name at all is 2, what is absent is 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.errors import HpctlError, InDoubt, Unavailable
from tests.cli.conftest import Head

FS, S3 = "fs-0123456789abcdef0", "s3://data/x"

MALFORMED = [
    ("cluster describe not/a/name", "cluster's name"),
    ("cluster nodes --cluster not_a_name", "cluster's name"),
    ("cluster import llm--prod-", "cluster's name"),
    ("cluster delete .. --yes", "cluster's name"),
    ("cluster wait llm.prod", "cluster's name"),
    ("cluster events --cluster arn:aws:nothing", "cluster's name"),
    ("capacity --cluster not_a_name", "cluster's name"),
    ("cluster scale not/a/group 3", "instance group's name"),
    ("cluster scale worker-group-1 many", "'many' is not a valid integer"),
    ("cluster scale worker-group-1", "say how many"),
    ("cluster scale worker-group-1 --nodes n[1-", "n[1-"),
    ("cluster nodes --group a/b", "instance group's name"),
    ("cluster events --group a/b", "instance group's name"),
    ("cluster software-update --group a/b", "instance group's name"),
    ("cluster software-update --release 1.2.3", "--release is for the groups"),
    ("cluster software-update --batch many", "--batch"),
    ("cluster software-update --interval 2h", "from 0s to 1h"),
    ("cluster health-check", "name the nodes"),
    ("cluster nodes ip-10-1-0-[1-", "ip-10-1-0-[1-"),
    ("cluster replace ip-10-1-0-[1-", "ip-10-1-0-[1-"),
    ("cluster ssh ip-10-1-0-[1-", "ip-10-1-0-[1-"),
    ("cluster wait --timeout soon", "90s, 30min or 3h"),
    ("cluster events --since yesterday", "is no time"),
    ("cluster events --follow --json", "cannot --follow"),
    (f"storage link fs-nope {S3} --path /x", "a file system's id"),
    (f"storage link {FS} s3:/data --path /x", "names no bucket"),
    (f"storage link {FS} {S3} --path x", "no directory"),
    (f"storage link {FS} {S3} --path /x --timeout soon", "90s, 30min or 3h"),
    ("storage ls nope", "a file system's id"),
    ("lifecycle push . data/x", "not an S3 prefix"),
    ("iam check hyperpod --as operator", "a role's ARN"),
    ("iam operator --account 12", "12 digits"),
    ("iam operator --cluster not_a_name", "no cluster's name"),
    ("iam operator --bucket Not/A", "bucket's name"),
]
NOT_THERE = [
    ("cluster describe llm-prd", "is it llm-prod"),
    ("cluster nodes --cluster llm-prd", "is it llm-prod"),
    ("cluster import llm-prd", "is it llm-prod"),
    ("cluster events llm-prd", "is it llm-prod"),
    ("cluster wait llm-prd", "is it llm-prod"),
    ("cluster delete llm-prd --yes", "is it llm-prod"),
    ("cluster delete i-0000000000000dead --yes", "no node is called"),
    ("cluster replace ip-10-1-0-3 --cluster llm-prd", "is it llm-prod"),
    ("cluster ssh ip-10-1-0-3 --cluster llm-prd", "is it llm-prod"),
    ("capacity --cluster llm-prd", "is it llm-prod"),
    ("cluster scale worker-grup-1 3", "did you mean worker-group-1"),
    ("cluster nodes --group nosuch", "head, worker-group-1"),
    ("cluster events --group nosuch", "head, worker-group-1"),
    ("cluster software-update --group nosuch", "head, worker-group-1"),
    ("cluster health-check --group nosuch", "head, worker-group-1"),
    ("cluster nodes ip-10-1-0-33", "did you mean ip-10-1-0-3"),
    ("cluster nodes worker-group-1", "is an instance group, not a node"),
    ("cluster events --node zzz", "no node is called 'zzz'"),
    ("cluster replace zzz", "no node is called 'zzz'"),
    ("cluster delete-nodes zzz", "no node is called 'zzz'"),
    ("cluster health-check zzz", "no node is called 'zzz'"),
    ("cluster ssh zzz", "no node is called 'zzz'"),
    ("cluster create nowhere.yaml", "No such file"),
    ("cluster validate nowhere.yaml", "does not exist"),
    ("cluster provisioning-parameters nowhere.yaml", "No such file"),
    ("lifecycle test nowhere --no-slurm", "does not exist"),
    (f"lifecycle push nowhere {S3}", "does not exist"),
    ("lifecycle show --root nowhere", "does not exist"),
    ("storage preload /nowhere", "does not exist"),
]


@pytest.mark.parametrize(("table", "code"), [(MALFORMED, 2), (NOT_THERE, 1)])
def test_a_wrong_argument_ends_as_its_kind_does(
    history: Head,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: list[tuple[str, str]],
    code: int,
) -> None:
    monkeypatch.delenv("HPCTL_CLUSTER", raising=False)
    monkeypatch.setenv("SAGEMAKER_RESOURCE_CONFIG_PATH", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    wrong = []
    for line, said in table:
        result = history.run(*line.split(), width=300)
        error = result.exception
        expected = error is None or isinstance(error, SystemExit | HpctlError)
        unsure = isinstance(error, Unavailable | InDoubt)
        text = f"{result.output} {error} {getattr(error, 'hint', '')}"
        if not expected or unsure or result.exit_code != code or said not in text:
            wrong.append(f"{line}: {result.exit_code} {text}")
    assert wrong == []
    assert history.aws.sagemaker.ordered == []
