"""What travels to a GPU machine without a network: which files, and within which size."""

import json
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from hpctl.clusters import iam_policies
from tests.gpu import carry
from tests.gpu.carry import (
    FOLDER,
    LARGEST_BYTES,
    SERVICES,
    TooLarge,
    check_size,
    find_unmet,
    is_packed,
    keep_botocore_file,
    merge_needs,
    read_metadata,
    read_requirements,
    trim_botocore,
)

pytestmark = pytest.mark.integration

METADATA = """\
Metadata-Version: 2.4
Name: example
Provides-Extra: floor
Provides-Extra: large
Requires-Dist: click>=8.1
Requires-Dist: numpy>=2
Requires-Dist: tomli; python_version < "3.11"
Requires-Dist: py-spy<0.5; extra == "floor"
Requires-Dist: pytest>=8; extra == "floor"
Requires-Dist: pytest<10; extra == "large"
Requires-Dist: moto; extra == "large"
"""


def test_requirements_are_those_of_the_machines_python_and_of_the_chosen_tools() -> None:
    metadata = HeaderParser().parsestr(METADATA)
    needed = read_requirements(metadata, frozenset({"pytest"}))
    assert needed == {"click": SpecifierSet(">=8.1"), "pytest": SpecifierSet(">=8,<10")}
    assert set(read_requirements(metadata)) == {"click"}


def test_what_two_wheels_need_must_meet_both(tmp_path: Path) -> None:
    needed = merge_needs({"click": SpecifierSet(">=8")}, {"click": SpecifierSet("<9")})
    (tmp_path / "click-9.1-py3-none-any.whl").touch()
    (unmet,) = find_unmet(tmp_path, needed)
    assert unmet in ("click<9,>=8", "click>=8,<9")
    (tmp_path / "click-9.1-py3-none-any.whl").rename(tmp_path / "click-8.3-py3-none-any.whl")
    assert find_unmet(tmp_path, needed) == []


def test_botocore_keeps_its_code_and_the_models_of_the_services_that_hpctl_calls() -> None:
    kept = [
        "botocore/session.py",
        "botocore/data/endpoints.json",
        "botocore/data/_retry.json",
        "botocore/data/sagemaker/2017-07-24/service-2.json.gz",
        "botocore-1.44.8.dist-info/METADATA",
    ]
    assert all(keep_botocore_file(name) for name in kept)
    assert not keep_botocore_file("botocore/data/quicksight/2018-04-01/service-2.json.gz")


def test_the_kept_services_are_those_that_the_head_node_calls() -> None:
    assert set(iam_policies.HEAD_NODE) | set(iam_policies.AUTOSCALE) <= SERVICES


def test_a_trimmed_wheel_lists_what_it_holds(tmp_path: Path) -> None:
    wheel = tmp_path / "botocore-1.0-py3-none-any.whl"
    names = ["botocore/session.py", "botocore/data/s3/x/y.json", "botocore/data/sdb/x/y.json"]
    record = "botocore-1.0.dist-info/RECORD"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, "{}")
        archive.writestr(record, "".join(f"{name},sha256=0,2\n" for name in [*names, record]))
    trim_botocore(wheel)
    with zipfile.ZipFile(wheel) as archive:
        listed = [line.split(",")[0] for line in archive.read(record).decode().splitlines()]
        assert archive.namelist() == listed == [*names[:2], record]


def test_a_folder_that_is_too_large_names_its_largest_pieces(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/large.whl").write_bytes(b"x" * 3000)
    (tmp_path / "small").write_bytes(b"x" * 10)
    assert "2 files" in check_size(tmp_path, largest=3010)
    with pytest.raises(TooLarge, match=r"large\.whl") as raised:
        check_size(tmp_path, largest=3009)
    pieces = str(raised.value).splitlines()[1:]
    assert [piece.split()[-1] for piece in pieces] == ["wheels/large.whl", "small"]


def test_documents_of_packages_stay_behind() -> None:
    assert is_packed("/bin/sh")
    assert not is_packed("/usr/share/doc")
    assert not is_packed("/usr/share/doc/bash/copyright")
    assert not is_packed("package diverts others to: /bin/sh")


def test_a_filled_folder_is_complete_and_within_its_size() -> None:
    """Looks at what `make gpu-carry` has made here; a folder that was never filled is empty."""
    wheels = list((FOLDER / "wheels").glob("*.whl"))
    needed: dict[str, SpecifierSet] = {}
    for wheel in wheels:
        if not wheel.name.startswith("nvidia_resiliency_ext-"):
            needed = merge_needs(needed, read_requirements(read_metadata(wheel)))
    assert find_unmet(FOLDER / "wheels", needed) == []
    check_size(FOLDER, LARGEST_BYTES)


def test_a_wheel_of_another_tree_is_noticed(tmp_path: Path, monkeypatch) -> None:
    source = tmp_path / "code.py"
    source.write_text("before")
    monkeypatch.setattr(carry, "ROOT", tmp_path)
    monkeypatch.setattr(carry, "_own_files", lambda: [source])
    keys = {"own": carry._hash_files([source])}
    (tmp_path / carry.KEY).write_text(json.dumps(keys))
    words = ["--verify", "--folder", str(tmp_path)]
    assert carry.main(words) == 0
    source.write_text("after")
    assert carry.main(words) == 1
