"""The memory figures of a compiled program, made from those of XLA."""

from types import SimpleNamespace

import pytest

from shmap_compiler.records.compiled_program import MemoryAnalysis


def figures(**more):
    """Those of XLA, with 600 bytes of temporaries."""
    return SimpleNamespace(
        argument_size_in_bytes=100,
        output_size_in_bytes=50,
        alias_size_in_bytes=0,
        temp_size_in_bytes=600,
        generated_code_size_in_bytes=7,
        **more,
    )


def test_idle_space_that_libtpu_counts_twice_is_counted_once():
    # 500 bytes are allocated for arrays that need 400 at their peak: libtpu writes 600.
    found = MemoryAnalysis.of(figures(total_allocation_bytes=100 + 50 + 500))
    assert found.temp_size_in_bytes == 500
    assert found.total == 100 + 50 + 500 + 7


def test_results_in_the_place_of_arguments_are_allocated_once():
    given = figures(total_allocation_bytes=100 + 500)
    given.alias_size_in_bytes = 50
    assert MemoryAnalysis.of(given).temp_size_in_bytes == 500


@pytest.mark.parametrize("more", [{}, {"total_allocation_bytes": 0}])
def test_without_the_sum_of_all_allocations_the_figure_is_that_of_xla(more):
    assert MemoryAnalysis.of(figures(**more)).temp_size_in_bytes == 600


def test_allocations_of_other_things_are_not_temporaries():
    found = MemoryAnalysis.of(figures(total_allocation_bytes=5000))
    assert found.temp_size_in_bytes == 600


def test_temporaries_are_never_negative():
    found = MemoryAnalysis.of(figures(total_allocation_bytes=120))
    assert found.temp_size_in_bytes == 0
