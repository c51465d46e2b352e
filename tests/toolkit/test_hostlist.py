import pytest

from hpctl.toolkit.hostlist import HostlistError, expand_hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()), ("n1", ("n1",)), ("n[1-3]", ("n1", "n2", "n3")),
        ("n[08-10],login", ("n08", "n09", "n10", "login")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")), ("a,a", ("a", "a")),
    ],
)  # fmt: skip
def test_expand(text: str, names: tuple[str, ...]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("n[1-3", "n[1-3"), ("n1]", "n1]"), ("n[[1]]", "n[["), ("a,,b", ""), ("n[3-1]", "3-1"),
        ("n[a-b]", "a-b"), ("n[]", "n[]"), ("n 1", "n 1"), ("-h", "-h"), ("n1;rm", "n1;rm"),
        ("n[1-999999]", "1-999999"), ("n[1-9999]x[1-9999]", "n[1-9999]x[1-9999]"),
        ("n[1-99999999999999999999]", "1-99999999999999999999"),
    ],
)  # fmt: skip
def test_a_bad_list_names_its_bad_part(text: str, part: str) -> None:
    with pytest.raises(HostlistError) as caught:
        expand_hostlist(text)
    assert caught.value.part == part
