"""How long deliveries were on their way, by clocks that do not agree."""

from inorder.transport.grpc.transit import Transit

HOUR_US = 3_600_000_000


def test_what_takes_longer_than_the_fastest_was_late() -> None:
    transit = Transit()
    assert transit.left_us(HOUR_US, 500, ()) == 500  # as far as anybody can tell
    assert transit.left_us(HOUR_US + 1_000, 1_200, ()) == 1_200  # this one was faster
    assert transit.left_us(HOUR_US + 2_000, 9_000, ()) == 2_200


def test_what_confirms_a_request_was_sent_after_it_whatever_the_clocks_say() -> None:
    transit = Transit()
    assert transit.left_us(HOUR_US, 0, ()) == 0
    transit.asked(1, 2 * HOUR_US)  # this clock was set forward by two hours
    assert transit.left_us(HOUR_US + 100, 2 * HOUR_US + 50, ()) == 100  # it seems so
    assert transit.left_us(HOUR_US + 200, 2 * HOUR_US + 150, (1,)) == 2 * HOUR_US
    assert transit.left_us(HOUR_US + 300, 2 * HOUR_US + 250, ()) == 2 * HOUR_US + 100
    assert transit.left_us(HOUR_US + 400, 350, ()) == 350  # and back
