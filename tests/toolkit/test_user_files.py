"""What a user names, opened by code that may open more."""

import os
import stat

import pytest

from hpctl.toolkit.user_files import find_user_file_mtime, open_user_file

OTHER = 65534


@pytest.fixture
def own():
    """The user whose files the tests make."""
    return os.geteuid()


def open_regular(path, owner, flags=os.O_RDONLY):
    """Its content; raises OSError."""
    descriptor = open_user_file(str(path), flags, owner, stat.S_ISREG)
    with open(descriptor, "rb") as file:
        return file.read()


def test_a_users_own_file_is_opened(tmp_path, own):
    (tmp_path / "dump").write_text("mine")
    assert open_regular(tmp_path / "dump", own) == b"mine"
    assert find_user_file_mtime(str(tmp_path / "dump"), own) is not None
    os.utime(tmp_path / "dump", (5, 7))
    assert find_user_file_mtime(str(tmp_path / "dump"), own) == 7


def test_another_users_file_is_neither_opened_nor_reported(tmp_path, own):
    (tmp_path / "secret").write_text("theirs")
    with pytest.raises(PermissionError):
        open_regular(tmp_path / "secret", own + 1)
    assert find_user_file_mtime(str(tmp_path / "secret"), own + 1) is None
    assert find_user_file_mtime(str(tmp_path / "none"), own + 1) is None
    assert find_user_file_mtime(str(tmp_path / "secret"), own + 1) is None


def test_what_is_no_regular_file_is_not_opened(tmp_path, own):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", "/dev/null"):
        with pytest.raises(OSError, match="not such a file"):
            open_regular(path, own)
        assert find_user_file_mtime(str(path), own) is None


def test_a_fifo_is_opened_as_one(tmp_path, own):
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = open_user_file(str(tmp_path / "fifo"), os.O_WRONLY, own, stat.S_ISFIFO)
    os.write(writer, b"1")
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("path", ["", "dump", "../dump", "/tmp/\0", "/no/such"])
def test_what_is_no_path_is_an_error(path, own):
    with pytest.raises((OSError, ValueError)):
        open_regular(path, own)
    assert find_user_file_mtime(path, own) is None


def need_root():
    """The owner of a link is changed, which takes root."""
    if os.geteuid() != 0:
        pytest.skip("the test changes the owner of a link, which takes root")


@pytest.mark.parametrize("where", ["file", "directory"])
def test_a_link_of_a_user_leads_nowhere(tmp_path, own, where):
    need_root()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/dump").write_text("root's")
    if where == "file":
        link, path = tmp_path / "dump", tmp_path / "dump"
        link.symlink_to("kept/dump")
    else:
        link, path = tmp_path / "there", tmp_path / "there/dump"
        link.symlink_to("kept")
    assert open_regular(path, own) == b"root's"  # a link of root's, as of a mount that was moved
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(OSError, match="a link of a user"):
        open_regular(path, own)
    assert find_user_file_mtime(str(path), own) is None


def test_links_that_lead_in_a_circle_end(tmp_path, own):
    need_root()
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="a link of a user"):
        open_regular(tmp_path / "a", own)


def test_absolute_and_upward_links_of_root_are_followed(tmp_path, own):
    need_root()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/dump").write_text("yes")
    (tmp_path / "deep").mkdir()
    (tmp_path / "absolute").symlink_to(tmp_path / "kept")
    (tmp_path / "deep/upward").symlink_to("../kept")
    assert open_regular(tmp_path / "absolute/dump", own) == b"yes"
    assert open_regular(tmp_path / "deep/upward/dump", own) == b"yes"
    assert open_regular(tmp_path / "deep/../kept/dump", own) == b"yes"


def test_no_descriptor_is_left_open(tmp_path, own):
    (tmp_path / "dump").write_text("mine")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        open_regular(tmp_path / "dump", own)
        find_user_file_mtime(str(tmp_path / "none"), own)
        find_user_file_mtime(str(tmp_path / "dump"), own + 1)
    assert len(os.listdir("/proc/self/fd")) == before
