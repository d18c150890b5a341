"""The memory report as text for a terminal."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from occamy_xdsl.report.changes import changes
from occamy_xdsl.report.memory import MemoryReport
from occamy_xdsl.report.names import printable
from occamy_xdsl.report.sizes import format_size

COLUMNS = 110
"""Width of the text where there is no terminal to ask."""

_BLOCKS = " ▁▂▃▄▅▆▇█"


def render(report: MemoryReport, top: int, *, terminal: bool = False) -> str:
    """
    Totals, bytes after each means of lowering the peak, the `top` largest buffers live there, and bytes live
    over time; budgets and other modes where the report has them. In colour and as wide as the terminal if it is for
    one.
    """
    console = _console(terminal)
    parts = [_totals(report), _waterfall(report)]
    parts += [_budgets(report)] if report.budgets else []
    parts += [_modes(report)] if report.modes else []
    return _text(console, [*parts, _peak(report, top), _timeline(report, console.width)])


def render_changes(old: MemoryReport, new: MemoryReport, top: int, *, terminal: bool = False) -> str:
    """The totals of two reports side by side, and the `top` buffers that changed most."""
    found = changes(old, new)
    totals = _table("", "old", "new", "change")
    for change in found.totals:
        totals.add_row(change.label, f"{change.old:,}", f"{change.new:,}", f"{change.difference:+,}")
    parts: list[RenderableType] = [printable(f"{old.model} to {new.model}, bytes"), totals]
    if found.tensors:
        rows = _table("buffer", "old", "new", "change")
        for change in found.tensors[:top]:
            rows.add_row(
                printable(change.name),
                f"{change.old or '-':,}" if change.old else "-",
                f"{change.new:,}" if change.new else "-",
                f"{change.difference:+,}",
            )
        parts += ["", f"buffers that changed: {len(found.tensors)}", rows]
    return _text(_console(terminal), [Group(*parts)])


def _console(terminal: bool) -> Console:
    return Console(
        force_terminal=terminal,
        width=None if terminal else COLUMNS,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _text(console: Console, parts: Iterable[RenderableType]) -> str:
    with console.capture() as capture:
        for i, part in enumerate(parts):
            if i:
                console.print()
            console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _table(first: str, *numbers: str, last: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for name in last:
        table.add_column(name, overflow="fold")
    return table


def _totals(report: MemoryReport) -> RenderableType:
    above = report.pool_bytes - report.max_live_bytes
    over = f"{above / report.max_live_bytes:.1%} above max-live" if report.max_live_bytes else ""
    if over and report.memory == "pool":
        is_proven = report.pool_bytes == report.lower_bound
        over += ", proven smallest for this order" if is_proven else f", bound {report.lower_bound:,}"
    saved = f"{report.sum_bytes / report.pool_bytes:.1f} times the pool" if report.pool_bytes else ""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    order = f", order {report.order_status}" if report.order_status else ""
    resident = report.resident_weights_bytes
    streamed = f"streamed, {format_size(resident)} at a time" if resident < report.weights_bytes else ""
    for name, size, comment in (
        ("pool" if report.memory == "pool" else "heap", report.pool_bytes, over),
        ("max-live", report.max_live_bytes, f"the lower bound of any pool{order}"),
        ("workspace", report.workspace_bytes, "largest scratch buffer, part of the pool"),
        ("all buffers", report.sum_bytes, saved),
        ("weights", report.weights_bytes, streamed),
        ("input, output", report.io_bytes, "the caller's"),
    ):
        table.add_row(name, format_size(size), f"{size:,} B", comment)
    heading = Text(printable(report.model), style="bold")
    heading.append(f" on {report.target}, memory {report.memory}, planner {report.planner}", style="not bold")
    if report.limit_options:
        heading.append(f"; to meet the limit: {report.limit_options}", style="not bold")
    return Group(heading, table)


def _waterfall(report: MemoryReport) -> RenderableType:
    """Bytes after each means of lowering the peak; after each pass in reports that lack them."""
    steps = report.waterfall or report.passes
    costs = ["arithmetic"] if any(step.extra_percent for step in steps) else []
    table = _table("means" if report.waterfall else "pass", "bytes", "change", *costs, last=[""])
    most = max((step.max_live_bytes for step in steps), default=0)
    previous: int | None = None
    for step in steps:
        size = step.max_live_bytes
        change = "" if previous in (None, size) else f"{size - previous:+,}"
        bar = "█" * max(1, round(30 * size / most)) if most else ""
        cost = [f"{step.extra_percent:+.2f} %" if step.extra_percent else ""] if costs else []
        table.add_row(step.name, f"{size:,}", change, *cost, Text(bar, style="cyan"))
        previous = size
    return table


def _budgets(report: MemoryReport) -> RenderableType:
    base = report.budgets[0]
    most = max(step.pool_bytes for step in report.budgets)
    table = _table("budget", "pool bytes", "arithmetic", "calls", "weights read", last=[""])
    for step in report.budgets:
        bar = "█" * max(1, round(30 * step.pool_bytes / most)) if most else ""
        extra = f"{step.extra_percent:+.2f} %" if step is not base else ""
        row = (f"{step.pool_bytes:,}", extra, f"{step.calls:,}", f"{step.weights_read_bytes:,}")
        table.add_row(f"{step.stripe_budget:g} %", *row, Text(bar, style="cyan"))
    return Group(table, *report.advice())


def _modes(report: MemoryReport) -> RenderableType:
    pool = report.modes[-1].bytes
    table = _table("allocation", "bytes", "times the pool", "allocations in a run", last=[""])
    for mode in report.modes:
        times = f"{mode.bytes / pool:.2f}" if pool else ""
        table.add_row(mode.name, f"{mode.bytes:,}", times, f"{mode.allocations:,}", mode.what)
    return table


def _peak(report: MemoryReport, top: int) -> RenderableType:
    live = report.live_at_peak()
    table = _table(
        "live at the peak",
        "bytes",
        "offset",
        "first",
        "last",
        last=["made by", "last read by", "own memory since"],
    )
    for t in live[:top]:
        offset = "-" if t.offset is None else f"{t.offset:,}"
        place = (f"{t.bytes:,}", offset, str(t.first), str(t.last))
        table.add_row(printable(t.name), *place, *map(printable, (t.node, t.last_node, t.reason)))
    if not live:
        return "no buffers: all that is computed is in the caller's outputs"
    parts: list[RenderableType] = [
        f"peak at position {report.peak_position} of {len(report.timeline)}, node {printable(report.peak_node)}",
        table,
    ]
    if len(live) > top:
        parts.append(f"and {len(live) - top} more")
    return Group(*parts)


def _timeline(report: MemoryReport, width: int) -> RenderableType:
    if not report.timeline or not max(report.timeline):
        return "nothing is live at any position"
    most = max(report.timeline)
    line = "".join(_BLOCKS[-(-8 * size // most)] for size in resample(report.timeline, width))
    return Group(f"bytes live at each position, at most {most:,}", Text(line, style="cyan"))


def resample(timeline: Sequence[int], width: int) -> list[int]:
    """At most `width` values: the most of each of as many equal parts, so that no peak is lost."""
    count = min(width, len(timeline))
    bounds = [i * len(timeline) // count for i in range(count + 1)]
    return [max(timeline[a:b]) for a, b in pairwise(bounds)]
