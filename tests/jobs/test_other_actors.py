"""What else may stop or restart jobs, as `hpctl doctor` finds it."""

from hpctl.jobs.other_actors import check_conflicting_restart_tools


def test_hyperpod_s_other_actors_are_named_with_the_fix(tmp_path):
    (tmp_path / "etc/profile.d").mkdir(parents=True)
    assert list(check_conflicting_restart_tools(tmp_path)) == []
    (tmp_path / "etc/environment").write_text('PATH="/bin"\nHYPERPOD_HANG_RULES=/fsx/r.json\n')
    (tmp_path / "etc/profile.d/hang.sh").write_text("export HYPERPOD_HANG_RULES=/fsx/r.json\n")
    (tmp_path / "opt/sagemaker_cluster").mkdir(parents=True)
    found = list(check_conflicting_restart_tools(tmp_path))
    assert [(c.name, c.verdict) for c in found] == [
        ("hung-job agent", "warn"),
        ("hung-job agent", "warn"),
        ("auto-resume", "note"),
    ]
    assert "etc/environment" in found[0].what
    assert all(c.fix for c in found)
