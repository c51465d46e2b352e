"""`hpctl cluster storage link` and `ls`, on a service held to the model."""

import json

import pytest

from hpctl.clusters import storage
from hpctl.toolkit.errors import HpctlError
from tests.cli.test_golden import compare
from tests.clusters.storage.fsx import Fsx
from tests.fakes import command_line

pytestmark = pytest.mark.integration

FS = "fs-0123456789abcdef0"


@pytest.fixture
def fsx(monkeypatch) -> Fsx:
    made = Fsx()
    monkeypatch.setattr("hpctl.engine.adapters.make_aws_account_client", lambda *_: made)
    monkeypatch.setattr(storage, "POLL_S", 0.01)
    made.lustre(FS)
    return made


def run(*text):
    return command_line.run("cluster", "storage", *text)


def wanted(s3: str, path: str) -> storage.RequestedDataRepositoryLink:
    return storage.RequestedDataRepositoryLink.of(FS, s3, path, auto_import=True, auto_export=False)


def test_a_link_is_made_and_waited_for(fsx):
    fsx.looks = 2
    done = run("link", FS, "s3://data/imagenet", "--path", "/imagenet", "--auto-export")
    assert done.exit_code == 0, done.output
    compare("storage-link.txt", done.stdout)
    assert "CREATING" in done.stderr
    (made,) = fsx.associations.values()
    assert made["DataRepositoryPath"] == "s3://data/imagenet/"
    assert made["BatchImportMetaDataOnCreate"] is True
    events = {"Events": ["NEW", "CHANGED", "DELETED"]}
    assert made["S3"] == {"AutoImportPolicy": events, "AutoExportPolicy": events}


def test_neither_a_link_that_is_there_nor_a_lost_reply_is_repeated(fsx):
    fsx.lose_reply = True
    done = run("link", FS, "s3://data/x", "--path", "/x", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["made"] is True
    again = run("link", FS, "s3://data/x/", "--path", "/x/", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["made"] is False
    assert fsx.orders == len(fsx.associations) == 1


@pytest.mark.parametrize(
    ("path", "says"),
    [("/x/y", "is already linked to s3://data/a/"), ("/x", "overlaps another association")],
)
def test_a_path_that_leads_elsewhere_is_refused(fsx, path, says):
    run("link", FS, "s3://data/a", "--path", "/x/y")
    with pytest.raises(HpctlError, match=says):
        storage.create_data_repository_link(fsx, wanted("s3://data/b", path))


@pytest.mark.parametrize(
    ("file_system", "says"),
    [
        ({"FileSystemType": "OPENZFS"}, "only FSx for Lustre"),
        ({"LustreConfiguration": {"DeploymentType": "SCRATCH_1"}}, "cannot be linked to S3"),
        ({"FileSystemTypeVersion": "2.10"}, "cannot be linked to S3"),
        ({"Lifecycle": "CREATING"}, "is CREATING"),
    ],
)
def test_a_file_system_that_cannot_be_linked_is_named(fsx, file_system, says):
    fsx.lustre(FS, **file_system)
    with pytest.raises(HpctlError, match=says) as caught:
        storage.create_data_repository_link(fsx, wanted("s3://data/b", "/x"))
    assert caught.value.hint
    assert fsx.associations == {}


def test_a_file_system_that_is_not_there_is_absent(fsx):
    other = "fs-0123456789abcdeff"
    for text in (("link", other, "s3://b/p", "--path", "/x"), ("ls", other)):
        answer = run(*text)
        assert answer.exit_code == 1
        assert str(answer.exception) == f"FSx has no file system {other} in the region us-west-2"
        assert f"is it {FS}?" in getattr(answer.exception, "hint", "")


def test_a_link_that_fails_is_1_and_one_that_takes_longer_is_3(fsx):
    fsx.fails = "The bucket data does not exist."
    done = run("link", FS, "s3://data/a", "--path", "/a")
    assert (done.exit_code, fsx.fails in done.stdout) == (1, True)
    fsx.looks = 1000
    assert run("link", FS, "s3://data/a", "--path", "/x", "--timeout", "0.05s").exit_code == 3
    done = run("link", FS, "s3://data/a", "--path", "/x", "--no-wait")
    assert done.exit_code == 0
    assert "It continues in the service" in done.stdout


def test_a_dry_run_looks_and_makes_nothing(fsx):
    done = run("link", FS, "s3://data/a", "--path", "/x", "--dry-run")
    assert done.exit_code == 0
    assert done.stdout == f"Would link {FS}/x to s3://data/a/\nDry run: nothing was done.\n"
    refused = run("link", "fs-0123456789abcdeff", "s3://data/a", "--path", "/x", "--dry-run")
    assert refused.exit_code == 1
    assert fsx.orders == 0


def test_the_list_is_as_before(fsx):
    run("link", FS, "s3://a-bucket-with-a-long-name/imagenet/2026-01", "--path", "/imagenet")
    fsx.fails = "The bucket is in another region."
    run("link", FS, "s3://data/checkpoints", "--path", "/checkpoints", "--auto-export")
    done = run("ls")
    assert done.exit_code == 1
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    compare("storage-ls.txt", done.stdout)
    compare("storage-ls.json", run("ls", FS, "--json").stdout)


def test_no_links_are_no_error(fsx):
    done = run("ls")
    assert (done.exit_code, done.stdout) == (0, "No file system here is linked to S3.\n")
    done = run("ls", FS)
    assert (done.exit_code, done.stdout) == (0, f"{FS} is not linked to S3.\n")
