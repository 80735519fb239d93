import pytest

from horsies_django.core.limits import Rate

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("5/s", Rate(5, 1, 5)),
        ("100/m", Rate(100, 60, 100)),
        (" 10 / 2h , 3 ", Rate(10, 7_200, 3)),
        ("1/d", Rate(1, 86_400, 1)),
    ],
)
def test_a_rate_is_a_count_a_period_and_an_optional_burst(text, rate):
    assert Rate.parse(text) == rate


@pytest.mark.parametrize("text", ["", "0/m", "5", "5/w", "-1/m", "5/0m", "5/m, 0", "1.5/s", None, 7])
def test_an_invalid_rate_is_rejected_with_the_allowed_format(text):
    with pytest.raises(ValueError, match="is not a rate; allowed: a count"):
        Rate.parse(text)


def test_a_token_bucket_never_holds_more_than_its_burst():
    rate = Rate.parse("60/m, 5")

    assert rate.tokens(None, 0) == 5
    assert rate.tokens(0, 2.5) == 2.5
    assert rate.tokens(4, 1_000) == 5
    assert rate.tokens(1, -3) == 1  # transactions of two hosts may start in one order and take tokens in another
    assert rate.wait(0.25) == pytest.approx(0.75)
    assert rate.wait(1) == 0


@pytest.mark.parametrize("left", [float("nan"), float("inf"), float("-inf"), -1e300])
def test_a_token_bucket_with_an_invalid_count_recovers_soon(left):
    rate = Rate.parse("60/m, 5")

    assert rate.tokens(left, 6) == 5 or rate.wait(rate.tokens(left, 6)) == 0
    assert rate.wait(rate.tokens(left, 0)) <= 6
