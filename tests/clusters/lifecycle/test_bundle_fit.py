"""Wheels that cannot be installed on the nodes are refused, each with its reason."""

import io
import json
import tarfile
import zipfile

import pytest

from hpctl.clusters.bundle_checks import find_bundle_problems
from hpctl.clusters.bundle_wheels import (
    WheelTargetPlatform,
    find_python_version_in_archive,
    find_unmet_wheel_requirements,
)
from tests.clusters.lifecycle.node import bundle

pytestmark = pytest.mark.integration


def wheel(house, name, *headers):
    house.mkdir(exist_ok=True)
    project, version, *_ = name.split("-")
    lines = ["Metadata-Version: 2.1", f"Name: {project}", f"Version: {version}", *headers, "", ""]
    with zipfile.ZipFile(house / f"{name}.whl", "w") as file:
        file.writestr(f"{project}-{version}.dist-info/METADATA", "\n".join(lines))


def whole(house, *needs, python=">=3.10"):
    wheel(house, "pip-26.0-py3-none-any")
    headers = [f"Requires-Python: {python}", *(f"Requires-Dist: {need}" for need in needs)]
    wheel(house, "hpctl-0.1.0-py3-none-any", *headers)


CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "another Python": (
        ("fast",),
        ("fast-1.0-cp312-cp312-manylinux2014_x86_64",),
        "is not for Python",
    ),
    "another machine": (("fast",), ("fast-1.0-cp310-cp310-manylinux2014_aarch64",), "is not for"),
    "a newer glibc": (("fast",), ("fast-1.0-cp310-cp310-manylinux_2_39_x86_64",), "is not for"),
    "another version": (("fast>=2",), ("fast-1.0-py3-none-any",), "is another version"),
    "none": (("fast",), (), "hpctl-0.1.0-py3-none-any.whl needs fast: no wheel of it is there"),
    "for 3.10 alone": (('fast; python_version < "3.11"',), (), "no wheel of it is there"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wheel_that_does_not_fit_is_named(tmp_path, name: str) -> None:
    needs, wheels, why = CASES[name]
    whole(tmp_path, *needs)
    for one in wheels:
        wheel(tmp_path, one)
    (lack,) = find_unmet_wheel_requirements(tmp_path, WheelTargetPlatform())
    assert why in lack.why


@pytest.mark.parametrize(
    "name",
    ["fast-1.0-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64",
     "fast-1.0-cp39-abi3-manylinux_2_28_x86_64", "fast-1.0-py2.py3-none-any",
     "fast-1.0-cp310-cp310-linux_x86_64"],
)  # fmt: skip
def test_what_pip_would_take_fits(tmp_path, name: str) -> None:
    whole(tmp_path, "fast[x]>=1", 'later; python_version >= "3.11"', 'more; extra == "x"')
    wheel(tmp_path, name)
    assert find_unmet_wheel_requirements(tmp_path, WheelTargetPlatform()) == []


def test_a_bundle_is_refused_whose_target_is_another(tmp_path) -> None:
    house = tmp_path / "house"
    whole(house, python=">=3.11")
    made = bundle(tmp_path / "b", tuple(sorted(house.glob("*.whl")))).directory
    (made / "target.json").write_text(json.dumps({"python": "3.10", "machine": "x86_64"}))
    (problem,) = find_bundle_problems(made)
    assert problem.path == "wheels"
    assert "hpctl-0.1.0-py3-none-any.whl is not for Python 3.10 on x86_64" in problem.what
    (made / "target.json").write_text(json.dumps({"python": "3.12"}))
    assert find_bundle_problems(made) == ()
    (made / "target.json").unlink()  # older bundles, for today's AMIs
    assert [problem.path for problem in find_bundle_problems(made)] == ["wheels"]
    for text in ("{", "[]", '{"python": "three"}', '{"python": "3.10; rm"}'):
        (made / "target.json").write_text(text)
        assert "target.json" in {problem.path for problem in find_bundle_problems(made)}, text


def test_the_version_of_a_packed_python_is_read_from_it(tmp_path) -> None:
    archive = tmp_path / "python.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name in ("python/bin/python3", "python/lib/python3.12/os.py"):
            packed.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert find_python_version_in_archive(archive) == "3.12"
