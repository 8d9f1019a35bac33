"""Modules with a few random changes, and random passes to run on them."""

from __future__ import annotations

import random
import re
from pathlib import Path

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[%@#!^]?[\w.$-]+|->|\s+|.', re.S)
_NUMBER = re.compile(r"-?\d+$")

_NUMBERS = (
    *("-1", "0", "1", "2", "3", "4", "7", "8", "64", "1048577", "2147483647", "2147483648"),
    *("4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
)
_STRINGS = ('"i"', '"j"', '"k"', '"z"', '""', '"a b"', '"\\22"', '"\\00"', '"é"', '"add"')
_ELEMENTS = ("f32", "bf16", "f64", "i1", "i8", "i32", "ui32", "i64", "f8E4M3FN", "index", "i4")
_OPS = (
    *("stablehlo.add", "stablehlo.maximum", "stablehlo.multiply", "stablehlo.subtract"),
    *("stablehlo.and", "stablehlo.or", "stablehlo.minimum", "stablehlo.divide"),
)
_COLLECTIVES = (
    *("stablehlo.all_reduce", "stablehlo.all_gather", "stablehlo.reduce_scatter"),
    *("stablehlo.all_to_all", "stablehlo.collective_permute", "stablehlo.collective_broadcast"),
)
_PASSES = (
    *("--shmap-verify", "--shmap-check-replication", "--shmap-elide-trivial-collectives"),
    *("--shmap-elide-invariant-reductions", "--shmap-merge-equal-collectives"),
    *("--shmap-elide-gathered-slices", "--shmap-form-reduce-scatter", "--shmap-fold-all-reduces"),
    *("--shmap-combine-all-reduces", "--shmap-combine-all-reduces=limit=1000000000000"),
    *("--shmap-legalize-collectives", "--shmap-legalize-collectives=groups=ids"),
    *("--shmap-legalize-collectives=partitioner=shardy", "--shmap-wrap-manual"),
    *("--shmap-wrap-manual=partitioner=shardy", "--shmap-inline-meshes"),
    *("--shmap-import-manual-computation", "--shmap-import-custom-calls"),
    *("--shmap-import-custom-calls=mesh=i=4,j=2", "--shmap-check-hangs"),
)
_REWRITES = (
    *("--shmap-unroll-gathering-loops", "--shmap-overlap-exchange-block"),
    *("--shmap-overlap-all-to-all", "--shmap-overlap-row-block", "--shmap-overlap-gather-scatter"),
    *("--shmap-overlap-gather-product", "--shmap-overlap-gather-contraction"),
    *("--shmap-overlap-product-scatter", "--shmap-overlap-product-sum"),
    "--shmap-order-gathered-products",
)
_CHOICES = (
    "--shmap-choose-overlap=effort=force",
    "--shmap-choose-overlap=effort=force may_round=true",
)
_PIPELINES = (
    (*_PASSES[:11], "--shmap-wrap-manual", "--shmap-inline-meshes"),
    (*_PASSES[:9], _PASSES[12], _PASSES[14], _PASSES[15]),
    (*_PASSES[:1], *_PASSES[2:9], _PASSES[11], _PASSES[13], _PASSES[15]),
    ("--shmap-import-manual-computation",),
    ("--shmap-import-manual-computation", "--shmap-pipeline"),
    ("--shmap-import-custom-calls",),
    ("--shmap-import-custom-calls", "--shmap-pipeline"),
    (_CHOICES[0], *_REWRITES, "--shmap-verify"),
    (_CHOICES[1], *_REWRITES, _PASSES[9], "--shmap-wrap-manual"),
    _REWRITES,
)


def corpus(folder: Path) -> list[str]:
    """The modules of the lit tests in `folder`, without comments, by file and position."""
    modules = []
    for path in sorted(folder.rglob("*.mlir")):
        if path.stem.endswith("_invalid") and not path.stem.startswith("verify"):
            continue  # these are hardly modules
        for chunk in path.read_text().split("// -----"):
            text = re.sub(r"^\s*//.*\n", "", chunk, flags=re.M).strip()
            if text:
                modules.append(text + "\n")
    return modules


def mutated(rng: random.Random, modules: list[str]) -> str:
    """One of `modules` with one to three changes."""
    text = rng.choice(modules)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 3))):
        text = rng.choice(_MUTATIONS)(rng, text, modules) or "\n"
    return text


def passes(rng: random.Random) -> list[str]:
    """A pipeline of the project, one pass, or a few in any order."""
    kind = rng.random()
    if kind < 0.4:
        return list(rng.choice(_PIPELINES))
    if kind < 0.7:
        return [rng.choice((*_PASSES, *_REWRITES))]
    some = (*_PASSES, *_CHOICES, *_REWRITES, "--canonicalize", "--cse")
    return [rng.choice(some) for _ in range(rng.randint(2, 5))]


def _token(rng: random.Random, text: str, modules: list[str]) -> str:
    """Another token of the same kind in place of one."""
    tokens = _TOKENS.findall(text)
    places = [k for k, token in enumerate(tokens) if _others(token, tokens)]
    if not places:
        return text
    # Few tokens are numbers, names or strings, and these are what passes read.
    kind = rng.choice([_kind(tokens[k]) for k in places])
    place = rng.choice([k for k in places if _kind(tokens[k]) == kind])
    tokens[place] = rng.choice(_others(tokens[place], tokens))
    return "".join(tokens)


def _kind(token: str) -> str:
    return "number" if _NUMBER.match(token) else token[:1] if token[:1] in '"%@#!' else "word"


def _others(token: str, tokens: list[str]) -> tuple[str, ...] | list[str]:
    if _NUMBER.match(token):
        return _NUMBERS
    if token.startswith('"'):
        name = token.strip('"')
        return tuple(f'"{each}"' for each in _COLLECTIVES) if name in _COLLECTIVES else _STRINGS
    if token[:1] in "%@":
        return [each for each in tokens if each[:1] == token[:1] and len(each) > 1]
    if token in _ELEMENTS:
        return _ELEMENTS
    if token in _OPS:
        return _OPS
    shaped = re.fullmatch(r"(?:\d+x)*(\w+)", token)
    if shaped and shaped[1] in _ELEMENTS:
        return [each for each in tokens if re.fullmatch(r"(?:\d+x)+\w+", each)] + ["2x2xf32", "f32"]
    return ()


def _lines(rng: random.Random, text: str, modules: list[str]) -> str:
    """A line less, twice, elsewhere, or one of another module."""
    lines = text.splitlines(keepends=True)
    here, there = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[here]
    elif kind == 1:
        lines.insert(there, lines[here])
    elif kind == 2:
        lines[here], lines[there] = lines[there], lines[here]
    else:
        lines[here] = rng.choice(rng.choice(modules).splitlines(keepends=True))
    return "".join(lines)


def _attribute(rng: random.Random, text: str, modules: list[str]) -> str:
    """Something in brackets left out, or with the contents of other brackets."""
    found = list(re.finditer(r"\{[^{}]*\}|\[[^][]*\]|<[^<>]*>", text))
    if not found:
        return text
    place, other = rng.choice(found), rng.choice(found)
    new = rng.choice(("", place[0][0] + place[0][-1], other[0]))
    return text[: place.start()] + new + text[place.end() :]


def _piece(rng: random.Random, text: str, modules: list[str]) -> str:
    """A few characters less."""
    start = rng.randrange(len(text))
    return text[:start] + text[start + rng.choice((1, 2, 8)) :]


_MUTATIONS = (*[_token] * 14, *[_lines] * 3, *[_attribute] * 2, _piece)
