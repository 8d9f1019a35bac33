"""The header with the verdict, the totals, and where the figures come from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from shmap_passes.cost.chips import Chip
from shmap_passes.cost.networks import Network, Torus

from shmap_compiler.base.text_tables import show_bytes, show_flops, show_seconds
from shmap_compiler.explain.figures import Figures, Memory
from shmap_compiler.explain.page.markup import Markup, bar, element, join
from shmap_compiler.explain.text import memory_rows, totals_rows
from shmap_compiler.targets.target import Target

_HARDLY = 0.005
"""The share of a run for which a device may wait while we say that the wire is hidden."""


def target(explanation: Figures) -> str:
    return explanation.target or "the devices of its mesh"


# ----------------------------------------------------------------------------------------- header


def header(explanation: Figures) -> Markup:
    sizes = ", ".join(f"{axis}={size}" for axis, size in explanation.mesh.items())
    chip = f", {explanation.chip}" if explanation.chip else ""
    return element(
        "header",
        element("h1", explanation.program.replace("`", "")),
        element("p", f"mesh({sizes}) on {target(explanation)}{chip}", class_="quiet"),
        element("p", verdict(explanation), class_="verdict"),
    )


def verdict(explanation: Figures) -> str:
    """What bounds a run, in a sentence or two."""
    totals = explanation.totals
    host, step_seconds = totals.host_exposed_seconds or 0.0, totals.step_seconds or 0.0
    if host > max(_HARDLY * step_seconds, totals.exposed_seconds or 0.0):
        waits = f"Waits {show_seconds(host)} of {show_seconds(step_seconds)} for the host"
        return f"{waits}. {_bound(explanation)}"
    if not explanation.collectives:
        took = show_seconds(totals.step_seconds) if totals.step_seconds is not None else ""
        return f"Compute-bound: {took}; it sends nothing." if took else "It sends nothing."
    if totals.step_seconds is None or totals.exposed_seconds is None:
        count = sum(cost.count for cost in explanation.collectives)
        collectives = f"{count} collective{'s' if count != 1 else ''}"
        return f"{collectives}; a device sends {show_bytes(totals.sent_bytes)}. No times are known."
    step = show_seconds(totals.step_seconds)
    if totals.exposed_seconds > _HARDLY * totals.step_seconds:
        waits = f"Waits {show_seconds(totals.exposed_seconds)} of {step} for the wire"
        return f"{waits}, {_where_it_waits(explanation)}. {_bound(explanation)}"
    wire = f"the wire, in use for {show_seconds(totals.wire_seconds or 0.0)}, is hidden behind it"
    return f"{(totals.bound or '').capitalize()}-bound: {step}; {wire}."


def _where_it_waits(explanation: Figures) -> str:
    costs = explanation.collectives
    longest = max(costs, key=lambda cost: cost.exposed_seconds or 0.0)
    share = (longest.exposed_seconds or 0.0) / (explanation.totals.exposed_seconds or 1.0)
    how_much = "all of it" if share > 0.995 else f"{100 * share:.0f}% of it"
    return f"{how_much} in the {longest.kind} at {longest.source or 'an unknown line'}"


def _bound(explanation: Figures) -> str:
    bound = f"{explanation.totals.bound}-bound"
    seconds = show_seconds(explanation.totals.bound_seconds or 0.0)
    return f"If all of it overlapped, the run would be {bound}: {seconds}."


# ------------------------------------------------------------------------------------- in figures


def totals_and_memory(explanation: Figures) -> Markup:
    return element(
        "section",
        element("div", element("h2", "Totals"), _pairs(totals_rows(explanation))),
        element("div", *_memory(explanation)),
        class_="columns",
    )


def _memory(explanation: Figures) -> Iterator[Markup]:
    memory = explanation.memory
    yield element("h2", "Memory of one device")
    yield bar(_shares(memory), over=memory.total > (memory.capacity or memory.total))
    yield _pairs(memory_rows(explanation), swatches=_PARTS)


_PARTS = ("arguments", "results", "temporaries", "program")


def _shares(memory: Memory) -> list[tuple[str, float]]:
    new = max(memory.results - memory.aliased, 0)
    sizes = (memory.arguments, new, memory.temporaries, memory.program)
    whole = max(memory.capacity or 0, sum(sizes)) or 1
    return [(name, size / whole) for name, size in zip(_PARTS, sizes, strict=True)]


def _pairs(rows: Iterable[tuple[str, ...]], swatches: Collection[str] = ()) -> Markup:
    """Names and values; before some names, the colour that stands for them in a bar."""

    def line(name: str, value: str) -> Markup:
        swatch = element("i", class_=f"swatch {name}") if name in swatches else ""
        return element("tr", element("th", swatch, name, scope="row"), element("td", value))

    return element("table", *(line(*row) for row in rows), class_="pairs")


# ------------------------------------------------------------------------------------------ notes


def notes(explanation: Figures) -> Markup:
    return element(
        "section",
        element("h2", "Where these figures come from"),
        element("ul", *(element("li", note) for note in (*_ALWAYS, *explanation.notes))),
        _figures(explanation),
    )


_ALWAYS = (
    "Read from the compiled program: the collectives, their order and bytes, the trip counts of "
    "loops, and which arrays are live.",
    "Modeled: all times. Collectives take what the bandwidth of their links allows; compute takes "
    "what the compiler estimates, or a roofline. Nothing was measured on a device.",
    "docs/explain.md has the formulas, and the source of each figure of a chip.",
)


def _figures(explanation: Figures) -> Markup:
    """Of the chip and the network of the target."""
    if explanation.target is None:
        return join()
    compiled_for = Target.parse(explanation.target)
    rows = [*_chip(compiled_for.chip), *_network(compiled_for.network)]
    return _pairs(rows) if rows else join()


def _chip(chip: Chip | None) -> Iterator[tuple[str, str]]:
    if chip is None:
        return
    speeds = (f"{type_} {show_flops(speed)}/s" for type_, speed in chip.flops.items())
    yield chip.name, ", ".join(speeds)
    memory = f"{show_bytes(chip.hbm_bytes)}, {_bandwidth(chip.hbm_bandwidth)}"
    yield "memory", memory


def _network(network: Network | None) -> Iterator[tuple[str, str]]:
    if network is None:
        return
    if isinstance(network, Torus):
        link = f"a link carries {_bandwidth(network.link_bandwidth)} each way"
        yield "network", f"{_grid(network)}; {link}"
    else:
        shape = f"{network.count} nodes of {network.size} devices"
        inside = f"a device sends {_bandwidth(network.device_bandwidth)} within its node"
        between = f"a node {_bandwidth(network.node_bandwidth)} to others"
        yield "network", f"{shape}; {inside}, {between}"


def _grid(network: Torus) -> str:
    shape = " \u00d7 ".join(map(str, network.shape))
    around = [str(d) for d, wraps in enumerate(network.wraps) if wraps]
    wraps = f"dimensions {', '.join(around)} wrap around" if around else "no dimension wraps around"
    return f"{shape} grid, {wraps}"


def _bandwidth(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.4g} GB/s"
