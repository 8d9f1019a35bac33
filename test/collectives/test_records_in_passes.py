"""The passes know the operation of every collective, as they have no records."""

import pytest
from shmap_passes.ir.collective_ops import COLLECTIVES, RAGGED_ALL_TO_ALL

from shmap_compiler.collectives import RECORDS
from shmap_compiler.collectives.record import Waits

WAITING = {record.hlo for record in RECORDS if record.waits is not Waits.NOBODY}


@pytest.mark.parametrize("name", sorted(WAITING))
def test_a_collective_of_a_record_is_one_of_the_passes(name):
    known = {each.removeprefix("stablehlo.") for each in COLLECTIVES} | {RAGGED_ALL_TO_ALL}
    assert name.replace("-", "_") in known
