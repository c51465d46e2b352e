"""A lifecycle script that fails: the message names the node, the step and its last line."""

import json

import pytest

from tests.daemon.scenarios.conftest import EVERY, World

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]

BAD = "#!/bin/sh\necho reaching out\necho 'licence.example: no route' >&2\nexit 7\n"


def test_the_message_names_the_step_and_the_fix_is_taken(world: World, tmp_path) -> None:
    site, config = tmp_path / "site.d", tmp_path / "config.json"
    site.mkdir()
    (site / "10-licence.sh").write_text(BAD)
    (site / "10-licence.sh").chmod(0o755)
    config.write_text(json.dumps({"failure_wait_s": 0, "steps": {"site": "required"}}))
    bundle, prefix = str(tmp_path / "bundle"), "s3://sagemaker-sandbox/site"
    parts = ("--config", str(config), "--add", str(site))
    world.hpctl("cluster", "lifecycle", "bundle", "-o", bundle, *parts)
    world.hpctl("cluster", "lifecycle", "push", bundle, prefix)
    world.write(lifecycle={"source_s3_uri": prefix, "on_create": "on_create.sh"})
    output = " ".join(world.create("--patience", "1s", code=1).split())
    assert "means: a lifecycle script ended with an error on the node" in output
    assert "log: hpctl lifecycle: FAILED step=site node=ip-127-0-1-1 after 2 tries" in output
    assert "site.d/10-licence.sh: exit code 7: licence.example: no route" in output
    assert "rest: aws logs tail /aws/sagemaker/Clusters/demo/" in output
    # Mended and pushed, the service's next try takes it.
    (site / "10-licence.sh").write_text("#!/bin/sh\necho licence at hand\n")
    parts = ("--config", str(config), "--add", str(site))
    world.hpctl("cluster", "lifecycle", "bundle", "-o", bundle, *parts)
    world.hpctl("cluster", "lifecycle", "push", bundle, prefix)
    world.hpctl("cluster", "wait", "demo", *EVERY)
    assert len(world.slurm()) == 2
