"""`hpctl cluster lifecycle test` with a real Slurm: what a node from the bundle is good for."""

import json

import pytest

from tests.clusters.lifecycle.test_cli import run

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]


def test_an_instance_of_a_bundle_joins_slurm_and_a_broken_one_does_not(tmp_path) -> None:
    (tmp_path / "site.d").mkdir()
    script = tmp_path / "site.d/1.compute.sh"
    script.write_text(
        "#!/bin/sh\ncase $HPCTL_CLUSTER in trial) ;; *) echo no disk; exit 3 ;; esac\n"
    )
    (tmp_path / "config.json").write_text('{"steps": {"site": "required"}}')
    args = ("--config", str(tmp_path / "config.json"), "--add", str(script.parent))
    for slurm, more in (("ip-127-0-1-1 is idle", ()), ("FAILED step=site node=ip-127-0-1-1", args)):
        made = str(tmp_path / "bundle")
        assert run("bundle", "-o", made, *more).exit_code == 0
        result = run("test", made, "--json")
        view = json.loads(result.stdout)
        assert slurm in view["slurm"]
        assert [trial["code"] for trial in view["trials"]] == [0, 0, 0]
        assert (result.exit_code, view["passed"]) == ((1, False) if more else (0, True))
