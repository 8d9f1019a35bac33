"""Work that runs beside collectives has fewer processors."""

import pytest

from shmap_compiler.explain.beside import Beside


@pytest.mark.parametrize(
    ("now", "alone", "seconds"),
    [
        (0.0, 1.0, 1.0),  # ends before they begin
        (1.0, 2.0, 1 + 1 / 0.75),  # the second half of it is beside them
        (2.0, 0.5, 0.5 / 0.75),
        (2.0, 3.0, 3.5),  # both collectives, from 2 to 4
        (4.0, 1.0, 1.0),  # after both
    ],
)
def test_a_collective_takes_its_share(now, alone, seconds):
    beside = Beside()
    beside.add(3.0, 4.0)
    beside.add(2.0, 3.0)
    assert beside.seconds(now, alone, 0.25) == pytest.approx(seconds)


def test_two_at_a_time_take_no_more_than_one():
    beside = Beside()
    beside.add(0.0, 1.0)
    beside.add(0.0, 1.0)
    assert beside.seconds(0.0, 1.0, 0.25) == pytest.approx(1.25)


def test_no_share_is_taken_where_other_units_send():
    beside = Beside()
    beside.add(0.0, 9.0)
    assert beside.seconds(0.0, 1.0, 0.0) == 1.0
