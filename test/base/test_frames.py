"""Room for the frames of deep calls: what calls cost does not depend on how deep they are."""

import resource
import sys

import pytest

import shmap_compiler.base.jax_compat.tracing as tracing
from shmap_compiler.base.frames import with_room
from shmap_compiler.lowering import lower_graph


def deeper(depth, fun):
    return fun() if depth == 0 else deeper(depth - 1, fun)


def page_faults_of_calls():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(300):
        deeper(40, int)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def most_faults(fun):
    return max(deeper(depth, fun) for depth in range(0, 200, 20))


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults of a thread")
def test_calls_at_the_end_of_a_chunk_of_frames_map_no_memory():
    assert most_faults(page_faults_of_calls) > 200  # what it is about, in CPython 3.11 and 3.12
    assert most_faults(lambda: with_room(page_faults_of_calls)) < 50


def test_with_room_calls_the_function():
    assert with_room(dict, [(1, 2)], a=3) == {1: 2, "a": 3}
    with pytest.raises(ZeroDivisionError, match="zero"):
        with_room(divmod, 1, 0)
    assert with_room(with_room, sum, (1, 2)) == 3


def test_tracing_and_lowering_have_room():
    assert "with_room" in tracing._traced_flat.__code__.co_names
    assert "with_room" in lower_graph._lowering.__code__.co_names
