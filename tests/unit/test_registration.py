"""What a job's Comment registers, as the core reads it: total over any text."""

import pytest

from hpctl.core.run_policy import Registration, registration

NO_JSON = "its Comment is no JSON after `hpctl:`"
NO_POLICY = "`policy` in its Comment is no mapping"
NO_SPARES = "`spares` in its Comment is no number of nodes"


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ('hpctl:{"ckpt":"/a","save_signal":"USR1"}', Registration("USR1")),
        ('hpctl:{"ckpt":"/a"} | hpctl: restarted 10 times', Registration()),
        ('hpctl:{"spares":2}', Registration(spares=2, supervised=True)),
        ('hpctl:{"spares":0,"supervised":true}', Registration(supervised=True)),
        ('hpctl:{"policy":{"restarts":3}}', Registration(policy={"restarts": 3})),
        ('hpctl:{"policy":[3]}', Registration(flaw=NO_POLICY)),
        ('hpctl:{"spares":-1}', Registration(flaw=NO_SPARES)),
        ('hpctl:{"spares":true}', Registration(flaw=NO_SPARES)),
        ('hpctl:{"spares":"2","policy":3}', Registration(flaw=f"{NO_POLICY}; {NO_SPARES}")),
        ("hpctl:{", Registration(flaw=NO_JSON)),
        ("hpctl:{" + '"a":[' * 5000, Registration(flaw=NO_JSON)),
        # Half a surrogate pair is JSON and no text: the journal could not take it.
        ('hpctl:{"save_signal":"\\ud800"}', Registration(flaw=NO_JSON)),
        ('hpctl:{"policy":{"\\udc00":1}}', Registration(flaw=NO_JSON)),
        ('hpctl:{"save_signal":"USR1","ckpt":"/\\ud83d\\ude00"}', Registration("USR1")),
        ("hpctl: restarted 10 times", None),
        ("hpctl:[1]", None),
        ("somebody's own words", None),
        ("", None),
    ],
)
def test_registration(comment: str, expected: Registration | None) -> None:
    found = registration(comment)
    assert found == expected
    if found is not None and expected is not None:
        assert found.policy == expected.policy
