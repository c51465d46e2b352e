"""A shell beside a cluster, or on its head node: the commands run in it over HTTP."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from hpctl.cli.main import cli
from tests.clusters.bed import CLUSTER, REGION, AwsBed
from tests.clusters.paper_slurm import PaperSlurm
from tests.tables import beside

ROLE = "arn:aws:iam::000000000000:role/hyperpod"
SPEC: dict[str, Any] = beside(__file__)
FAST = ("--every", "0.05s", "--patience", "1s", "--timeout", "20s")


class Shell:
    """A machine beside the cluster; with `slurm` it is the head node."""

    def __init__(self, bed: AwsBed, dir: Path, patch: pytest.MonkeyPatch) -> None:
        self.bed = bed
        self.file = dir / "cluster.yaml"
        self.patch = patch
        self.config = dir / "none.yaml"

    def write(self, **of_workers) -> None:
        spec = json.loads(json.dumps(SPEC))
        workers = spec["instance_groups"][1] | of_workers
        spec["instance_groups"][1] = {k: v for k, v in workers.items() if v is not None}
        self.file.write_text(yaml.safe_dump(spec))

    def head_node(self) -> PaperSlurm:
        slurm = PaperSlurm(f"ip-127-0-1-{n}" for n in range(2, 12))
        self.config.write_text(
            f"mode: observe\nstate_dir: {self.config.parent}\n"
            f"cluster: {{provider: sagemaker, name: {CLUSTER}, region: {REGION},"
            f" endpoint_url: '{self.bed.emulator.endpoint_url}'}}\n"
        )
        self.patch.setattr("hpctl.engine.adapters.make_slurm_command_client", lambda _: slurm)
        return slurm

    def run(self, *args: str, stdin: str = "", of: str = "cluster") -> Result:
        env = {
            "COLUMNS": "80",
            "AWS_ENDPOINT_URL_SAGEMAKER": self.bed.emulator.endpoint_url,
            "AWS_DEFAULT_REGION": REGION,
        }
        if self.config.exists():
            env["HPCTL_CONFIG"] = str(self.config)
        return CliRunner(env=env).invoke(
            cli, [of, *args], input=stdin, prog_name="hpctl", catch_exceptions=True
        )

    def said(self, *args: str, code: int = 0, stdin: str = "") -> str:
        result = self.run(*args, stdin=stdin)
        assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
        return result.stdout
