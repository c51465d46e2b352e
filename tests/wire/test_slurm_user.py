"""Whom agents and jobs take a daemon for: SlurmUser, as the machine's slurm.conf names it."""

import pwd

import pytest

from hpctl.wire import heads


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("ClusterName=c\nSlurmUser=games\n", "games"),
        ("#SlurmUser=bin\n\tslurmuser = games # of the site\nSlurmdUser=bin\n", "games"),
        ("ClusterName=c\n", "root"),
        ("ClusterName=c\nInclude /etc/slurm/site.conf\n", "slurm"),
    ],
)
def test_it_is_the_one_that_slurm_conf_names(text: str, user: str, tmp_path) -> None:
    conf = tmp_path / "etc/slurm/slurm.conf"
    assert heads.read_slurm_user(tmp_path) == "slurm"
    conf.parent.mkdir(parents=True)
    conf.write_text(text)
    assert heads.read_slurm_user(tmp_path) == user


def test_its_answers_are_believed(tmp_path, monkeypatch) -> None:
    conf, games = tmp_path / "slurm.conf", pwd.getpwnam("games").pw_uid
    monkeypatch.setenv("SLURM_CONF", str(conf))
    conf.write_text("SlurmUser=bin\n")
    assert games not in heads.list_trusted_head_node_uids()
    conf.write_text("SlurmUser=games\n")
    assert games in heads.list_trusted_head_node_uids()
