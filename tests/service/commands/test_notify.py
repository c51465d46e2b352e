"""`hpctl notify`, and what `config check` and `doctor` say of sinks."""

import json

import pytest

from hpctl.engine.config import read_config_file
from hpctl.service.checks import check_notifications
from hpctl.toolkit import output
from tests.fakes.command_line import run
from tests.service.test_notify import Webhook

pytestmark = pytest.mark.integration


def test_sinks_are_listed_tested_and_checked(tmp_path, monkeypatch):
    hook, conf = Webhook(), tmp_path / "hpctl.yaml"
    (tmp_path / "open").write_text("json://127.0.0.1:9/")
    monkeypatch.setenv("HOOK", f"{hook.url}secret-path")
    conf.write_text(
        f"state_dir: {tmp_path}\nnotify:\n  sinks: {{ops: 'env:HOOK', old: {tmp_path}/open}}\n"
        "  routes: [{to: [ops], kinds: [escalated], partitions: [gpu]}]\n"
    )
    listed = run("notify", "list", "--config", conf)
    assert "ops (env:HOOK) receives escalated gpu: 0 waiting" in listed.output
    sent = run("notify", "test", "ops", "--config", conf)
    assert (sent.exit_code, len(hook.got)) == (0, 1)
    assert "Next: hpctl status" in hook.texts[0]
    all_of_them = run("notify", "test", "--config", conf, "--json")
    assert all_of_them.exit_code == 1
    verdicts = {c["name"]: c["verdict"] for c in json.loads(all_of_them.output)["checks"]}
    assert verdicts == {"ops": "ok", "old": "fail"}
    assert "did you mean ops?" in str(
        run("notify", "test", "opss", "--config", conf).exception.hint
    )  # type: ignore[union-attr]
    checked = run("config", "check", conf)
    assert checked.exit_code == 1
    assert f"run: chmod 0640 {tmp_path}/open" in checked.output
    (check,) = check_notifications(read_config_file(conf), output.get_current_utc_time())
    assert check.verdict == "warn"
    assert "notification sink old: " in check.what
    hook.close()
    (gone,) = (
        c
        for c in check_notifications(read_config_file(conf), output.get_current_utc_time())
        if "ops" in c.what
    )
    assert "does not answer" in gone.what
    assert "secret" not in gone.what
