"""Constants of all types, also those that the bindings cannot hold, as of complex numbers."""

import pytest
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes.ir.constants import (
    elements,
    for_stablehlo,
    integer,
    integers,
    is_splat,
    with_type,
)
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.ir.shardy_notes import erase_shardy_notes

SPLATS = {
    "bf16": "1.500000e+00",
    "f8E4M3FN": "1.500000e+00",
    "i1": "true",
    "ui8": "3",
    "complex<f32>": "(1.000000e+00,-2.000000e+00)",
}
LISTS = {
    "bf16": "[1.000000e+00, 2.000000e+00]",
    "i1": "[true, false]",
    "complex<f64>": "[(1.000000e+00,0.000000e+00), (2.000000e+00,0.000000e+00)]",
}


def parsed(text, dialect="stablehlo"):
    module = ir.Module.parse(f"func.func @f() {{ %0 = {dialect}.constant {text} return }}")
    return module, find_ops(module.operation, [f"{dialect}.constant"])[0]


@pytest.mark.parametrize("element", SPLATS)
def test_a_splat_of_another_shape(element):
    with shmap_passes.make_context(), ir.Location.unknown():
        module, op = parsed(f"dense<{SPLATS[element]}> : tensor<4x{element}>")
        assert is_splat(op)
        assert (elements(op) is None) == element.startswith("complex")
        with ir.InsertionPoint(op):
            made = with_type(op, ir.Type.parse(f"tensor<2x8x{element}>"))
        assert module.operation.verify()
        expected = f"stablehlo.constant dense<{SPLATS[element]}> : tensor<2x8x{element}>"
        assert expected in str(made.owner)


@pytest.mark.parametrize("element", SPLATS)
def test_a_constant_keeps_the_location_it_is_made_at(element):
    with shmap_passes.make_context(), ir.Location.unknown():
        _, op = parsed(f"dense<{SPLATS[element]}> : tensor<4x{element}>")
        with ir.InsertionPoint(op), ir.Location.file("user.py", 3, 7):
            made = with_type(op, op.results[0].type)
        assert str(made.owner.location) == 'loc("user.py":3:7)'


@pytest.mark.parametrize("element", LISTS)
def test_what_is_no_splat(element):
    with shmap_passes.make_context(), ir.Location.unknown():
        _, op = parsed(f"dense<{LISTS[element]}> : tensor<2x{element}>")
        assert not is_splat(op)


def test_a_long_list_of_complex_numbers_is_no_splat():
    with shmap_passes.make_context(), ir.Location.unknown():
        numbers = ", ".join(f"({k}.0,0.0)" for k in range(100))
        _, op = parsed(f"dense<[{numbers}]> : tensor<100xcomplex<f32>>")
        assert not is_splat(op)


@pytest.mark.parametrize(("element", "text"), [*SPLATS.items(), *LISTS.items()])
def test_constants_of_shardy(element, text):
    with shmap_passes.make_context(), ir.Location.unknown():
        module, op = parsed(f"dense<{text}> : tensor<2x{element}>", "sdy")
        with ir.InsertionPoint(op):
            assert f"dense<{text}> : tensor<2x{element}>" in str(for_stablehlo(op).owner)
        erase_shardy_notes(module.operation)
        assert "sdy" not in str(module)
        assert module.operation.verify()


def test_integers_of_all_widths():
    def read(number, type_):
        with shmap_passes.make_context(), ir.Location.unknown():
            _module, op = parsed(f"dense<{number}> : tensor<{type_}>")
            return integer(op)

    for width in (2, 4, 8, 16, 32, 64):
        least, most = -(2 ** (width - 1)), 2**width - 1
        assert (read(least, f"i{width}"), read(most, f"ui{width}")) == (least, most)
    assert (read("true", "i1"), read("false", "i1")) == (1, 0)
    others = {"f32": "1.0", "complex<f32>": "(1.0,0.0)", "1xi32": 1}
    assert {read(number, type_) for type_, number in others.items()} == {None}


RESOURCE = '{-# dialect_resources: { builtin: { apart: "0x0400000003000000" } } #-}'


def with_resource(dialect):
    text = f"%0 = {dialect}.constant dense_resource<apart> : tensor<i32>"
    module = ir.Module.parse(f"func.func @f() {{ {text} return }} {RESOURCE}")
    return module, find_ops(module.operation, [f"{dialect}.constant"])[0]


def test_elements_apart_from_the_module_are_not_known():
    with shmap_passes.make_context():
        _module, op = with_resource("stablehlo")
        assert elements(op) is None
        assert integer(op) is None
        assert integers(op) is None
        assert not is_splat(op)


def test_a_constant_of_shardy_with_elements_apart_from_the_module():
    with shmap_passes.make_context(), ir.Location.unknown():
        module, op = with_resource("sdy")
        with ir.InsertionPoint(op):
            made = for_stablehlo(op)
        assert module.operation.verify()
        assert "stablehlo.constant dense_resource<apart> : tensor<i32>" in str(made.owner)


def test_lists_of_integers_of_few_bits_are_not_read():
    with shmap_passes.make_context():
        _module, op = parsed("dense<[1, 2]> : tensor<2xi4>")
        assert integers(op) is None
        _module, op = parsed("dense<[1, 2]> : tensor<2xui8>")
        assert integers(op).tolist() == [1, 2]
