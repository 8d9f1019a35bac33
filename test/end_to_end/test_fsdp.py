"""Training with `examples/fsdp.py` is training on one device, with an eighth of each array."""

import jax
import numpy as np
import pytest
from example_programs import MODULES

fsdp = MODULES["fsdp"]


@pytest.fixture(scope="module")
def trained():
    return fsdp.train(fsdp.training_step, fsdp.sharded_initial_state())


def test_loss_curve_is_that_of_one_device(trained):
    losses, _ = trained
    expected, _ = fsdp.train(fsdp.training_step_reference, fsdp.initial_state())
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert losses[-1] < losses[0] / 2


def test_no_device_keeps_more_than_an_eighth_after_training(trained):
    _, state = trained
    for array in jax.tree.leaves(state):
        rest = array.shape[1:]
        expected = (array.shape[0] // 8, *rest) if array.ndim else ()
        assert {shard.data.shape for shard in array.addressable_shards} == {expected}


def test_main_prints_the_losses_side_by_side(capsys):
    fsdp.main()
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    curves = np.array([row for row in rows if len(row) == 3 and row[0].isdigit()], float)
    np.testing.assert_array_equal(curves[:, 0], range(0, fsdp.STEPS, 5))
    np.testing.assert_allclose(curves[:, 1], curves[:, 2], rtol=1e-5)
