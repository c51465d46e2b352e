from hypothesis import given
from hypothesis import strategies as st

from hpctl.toolkit.token_bucket import TokenBucket

STEPS = st.lists(st.tuples(st.floats(-1, 5), st.floats(0, 4)), min_size=1, max_size=100)


def test_a_burst_passes_at_once_and_then_so_much_a_second():
    bucket = TokenBucket(3, 2)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert bucket.wait_s(100.0) == 0.5
    assert [bucket.take(100.5), bucket.take(100.5)] == [True, False]
    assert bucket.available(1e9) == 3, "no more than the burst is ever saved"


def test_what_is_spent_beyond_the_tokens_is_paid_for_later():
    bucket = TokenBucket(1, 1)
    bucket.spend(0.0, 4)
    assert (bucket.available(0.0), bucket.wait_s(0.0)) == (-3, 4)
    assert not bucket.take(3.5)
    assert bucket.take(4.0)


@given(STEPS, st.floats(0.5, 20), st.floats(0.1, 20))
def test_no_sequence_passes_more_than_the_burst_and_what_was_earned(steps, burst, per_second):
    """Whatever the clock does: a time that goes back earns nothing."""
    bucket, now, latest, passed = TokenBucket(burst, per_second), 100.0, 100.0, 0.0
    for step, amount in steps:
        now += step
        latest = max(latest, now)
        if bucket.take(now, amount):
            passed += amount
    assert passed <= burst + (latest - 100.0) * per_second + 1e-6


@given(STEPS, st.floats(1, 20), st.floats(0.1, 20))
def test_the_wait_that_it_names_is_enough(steps, burst, per_second):
    bucket, now = TokenBucket(burst, per_second), 100.0
    for step, amount in steps:
        now += abs(step)
        bucket.spend(now, amount)
        waited = TokenBucket(burst, per_second)
        waited.spend(now, burst - bucket.available(now))
        assert waited.take(now + waited.wait_s(now) + 1e-6)
