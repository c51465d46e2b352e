"""The lock of a cluster's slurm.conf: which file it is, and a file that is replaced."""

import fcntl

import pytest

from hpctl.daemon.locks import SlurmClusterLock
from hpctl.engine.adapters import read_slurm_cluster_name
from hpctl.wire import heads


@pytest.fixture
def configless(tmp_path, monkeypatch):
    """A machine whose only slurm.conf is the one that slurmctld has sent to slurmd or sackd."""
    sent = tmp_path / "conf" / "slurm.conf"
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(heads, "_CONFS", (str(tmp_path / "none" / "slurm.conf"), str(sent)))
    return sent


def is_locked(path):
    with path.open() as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_what_slurmctld_has_sent_is_locked_once_it_is_there(configless):
    lock = SlurmClusterLock(None)
    assert lock.trouble == ""
    configless.parent.mkdir()
    configless.write_text("ClusterName=Alpha\n")
    assert lock.trouble == ""
    assert is_locked(configless)
    lock.close()
    assert not is_locked(configless)


def test_a_file_that_is_replaced_is_locked_again(tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("")
    lock = SlurmClusterLock(conf)
    (tmp_path / "new").write_text("")
    (tmp_path / "new").replace(conf)
    assert not is_locked(conf)
    assert lock.trouble == ""
    assert is_locked(conf)
    conf.unlink()
    assert lock.trouble == ""
    lock.close()


def test_a_cluster_is_named_by_what_slurmctld_has_sent(configless):
    assert read_slurm_cluster_name(None) == ""
    configless.parent.mkdir()
    configless.write_text("ClusterName=Alpha\n")
    assert read_slurm_cluster_name(None) == "alpha"
