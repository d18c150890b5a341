"""The memory report as one HTML page without external resources: a map of the pool over time."""

from collections.abc import Sequence
from html import escape
from string import Template
from zlib import crc32

from occamy_xdsl.report.changes import Change, changes
from occamy_xdsl.report.memory import MemoryReport, Tensor
from occamy_xdsl.report.sizes import format_size

WIDTH, HEIGHT = 1000, 420
"""Size of the memory map in SVG units."""

_LEFT, _BOTTOM = 80, 40
"""Room for the labels of the axes, in SVG units."""

_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Memory of $model</title>
</head>
<body>
$fragment
</body>
</html>
""")

_STYLE = """\
<style>
.occamy-report { font: 14px/1.4 system-ui, sans-serif; color: #222; background: #fff; max-width: 1120px; }
.occamy-report table { border-collapse: collapse; margin: 0 0 1.5em; }
.occamy-report th { text-align: left; border-bottom: 1px solid #888; }
.occamy-report th, .occamy-report td { padding: 2px 12px 2px 0; }
.occamy-report td.n, .occamy-report th.n { text-align: right; font-variant-numeric: tabular-nums; }
.occamy-report svg { width: 100%; height: auto; }
.occamy-report svg text { font-size: 12px; fill: #444; }
.occamy-report rect.buffer { stroke: #fff; stroke-width: .5; }
.occamy-report rect.buffer:hover { stroke: #000; stroke-width: 2; }
</style>"""

_FRAGMENT = Template("""\
<div class="occamy-report">
$style
<h2>$model</h2>
<p>target $target, memory $memory, planner $planner; peak at node $peak_node$order</p>
$totals
<h3>Pool over time</h3>
$map
<h3>From no reuse to the pool</h3>
$waterfall
$budgets
$modes
<h3>After each pass</h3>
$passes
<h3>Live at the peak</h3>
$peak
</div>
""")


_CHANGES = Template("""\
<div class="occamy-report">
$style
<h2>$title</h2>
$targets
$totals
<h3>Buffers that changed: $count</h3>
$tensors
<h3>Pool over time, before</h3>
$before
<h3>Pool over time, after</h3>
$after
</div>
""")


def page(report: MemoryReport) -> str:
    """A complete document."""
    return _PAGE.substitute(model=escape(report.model), fragment=fragment(report))


def changes_page(old: MemoryReport, new: MemoryReport) -> str:
    """A complete document with the totals of two reports, all buffers that changed, and both pools on one scale."""
    found = changes(old, new)
    title = f"{old.model} to {new.model}" if old.model != new.model else f"{new.model}, old and new"
    most = max(_height(old), _height(new))
    content = _CHANGES.substitute(
        style=_STYLE,
        title=escape(title),
        targets=_table(
            ("", "target", "memory", "planner", "peak at node"),
            [
                (name, report.target, report.memory, report.planner, report.peak_node)
                for name, report in (("old", old), ("new", new))
            ],
        ),
        totals=_change_table("", found.totals),
        count=len(found.tensors),
        tensors=_change_table("buffer", found.tensors) if found.tensors else "",
        before=memory_map(old, most),
        after=memory_map(new, most),
    )
    return _PAGE.substitute(model=escape(title), fragment=content)


def _change_table(first: str, rows: Sequence[Change]) -> str:
    return _table(
        (first, "old", "new", "change"),
        [(c.label, f"{c.old:,}", f"{c.new:,}", f"{c.difference:+,}" if c.difference else "0") for c in rows],
    )


def fragment(report: MemoryReport) -> str:
    """The content of the page, to be put into another one."""
    totals = (
        ("pool" if report.memory == "pool" else "heap", report.pool_bytes),
        ("max-live: the lower bound of any pool", report.max_live_bytes),
        ("largest workspace, part of the pool", report.workspace_bytes),
        ("all buffers, if none shared memory", report.sum_bytes),
        ("weights", report.weights_bytes),
        ("inputs and outputs of the caller", report.io_bytes),
    )
    return _FRAGMENT.substitute(
        style=_STYLE,
        model=escape(report.model),
        target=escape(report.target),
        memory=escape(report.memory),
        planner=escape(report.planner),
        peak_node=escape(report.peak_node),
        order=_remarks(report),
        totals=_table(("", "", "bytes"), [(name, format_size(size), f"{size:,}") for name, size in totals]),
        map=memory_map(report),
        waterfall=_table(
            ("means", "", "bytes", "arithmetic"),
            [
                (
                    s.name,
                    format_size(s.max_live_bytes),
                    f"{s.max_live_bytes:,}",
                    f"{s.extra_percent:+.2f} %" if s.extra_percent else "",
                )
                for s in report.waterfall
            ],
        ),
        budgets=_budgets(report) if report.budgets else "",
        modes=_modes(report) if report.modes else "",
        passes=_table(
            ("pass", "", "max-live bytes"),
            [(p.name, format_size(p.max_live_bytes), f"{p.max_live_bytes:,}") for p in report.passes],
        ),
        peak=_table(
            ("buffer", "bytes", "offset", "first", "last", "made by", "last read by", "own memory since"),
            [
                (
                    t.name,
                    f"{t.bytes:,}",
                    "" if t.offset is None else f"{t.offset:,}",
                    t.first,
                    t.last,
                    t.node,
                    t.last_node,
                    t.reason,
                )
                for t in report.live_at_peak()
            ],
        ),
    )


def _remarks(report: MemoryReport) -> str:
    """What is proven, and what a memory limit took."""
    remarks = [f"order {report.order_status}"] if report.order_status else []
    if report.memory == "pool" and report.pool_bytes == report.lower_bound:
        remarks.append("pool proven smallest for this order")
    if report.limit_options:
        remarks.append(f"to meet the limit: {report.limit_options}")
    return "".join(f"; {escape(remark)}" for remark in remarks)


def _budgets(report: MemoryReport) -> str:
    rows = [
        (
            f"{s.stripe_budget:g} %",
            s.options,
            f"{s.pool_bytes:,}",
            f"{s.extra_percent:+.2f} %",
            f"{s.calls:,}",
            f"{s.weights_read_bytes:,}",
        )
        for s in report.budgets
    ]
    header = ("budget", "options", "pool bytes", "arithmetic", "calls", "weights read, bytes")
    advice = "".join(f"<p>{escape(text)}</p>" for text in report.advice())
    return f"<h3>In stripes</h3>\n{budget_curve(report)}\n{_table(header, list(rows))}\n{advice}"


def budget_curve(report: MemoryReport) -> str:
    """An SVG of the pool at each budget: budgets to the right, bytes upwards."""
    width, height = 360, 160
    budgets = [step.stripe_budget for step in report.budgets]
    most = max(max(step.pool_bytes for step in report.budgets), 1)
    points = [
        (_LEFT + width * step.stripe_budget / budgets[-1], 10 + height * (1 - step.pool_bytes / most))
        for step in report.budgets
    ]
    parts = [
        f'<svg viewBox="0 0 {_LEFT + width + 30} {height + 50}" style="max-width: {_LEFT + width + 30}px" '
        f'role="img" aria-label="Pool over budget">',
        f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{height + 10}" y2="{height + 10}" stroke="#888"/>',
        f'<line x1="{_LEFT}" x2="{_LEFT}" y1="10" y2="{height + 10}" stroke="#888"/>',
        f'<polyline points="{" ".join(f"{x:.2f},{y:.2f}" for x, y in points)}" fill="none" stroke="#000"/>',
    ]
    parts += [
        f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3"><title>{escape(step.options)}: {step.pool_bytes:,} bytes</title>'
        f'</circle><text x="{x:.2f}" y="{height + 28}" text-anchor="middle">{step.stripe_budget:g} %</text>'
        for (x, y), step in zip(points, report.budgets, strict=True)
    ]
    parts += [
        f'<text x="{_LEFT - 6}" y="{10 + height * (1 - share):.2f}" dy="4" text-anchor="end">'
        f"{format_size(round(most * share))}</text>"
        for share in (0, 0.5, 1)
    ]
    return "\n".join([*parts, "</svg>"])


def _modes(report: MemoryReport) -> str:
    rows = [(m.name, m.what, f"{m.bytes:,}", f"{m.allocations:,}") for m in report.modes]
    header = ("allocation", "", "bytes", "allocations in a run")
    return f"<h3>Other ways to allocate</h3>\n{_table(header, list(rows))}"


def _height(report: MemoryReport) -> int:
    """Bytes up to which a map has to reach."""
    return max(report.pool_bytes, report.max_live_bytes, 1)


def memory_map(report: MemoryReport, most: int | None = None) -> str:
    """
    An SVG of the pool: position in time to the right, address upwards to `most` bytes, one rectangle a buffer.

    The curve is the sum of bytes live at each position. Buffers outside a pool have no address and are left
    out.
    """
    positions = max(len(report.timeline), 1)
    most = most or _height(report)

    def x(position: float) -> str:
        return f"{_LEFT + position * WIDTH / positions:.2f}"

    def y(address: float) -> str:
        return f"{HEIGHT * (1 - address / most) + 10:.2f}"

    parts = [
        f'<svg viewBox="0 0 {_LEFT + WIDTH + 10} {HEIGHT + 10 + _BOTTOM}" role="img" '
        f'aria-label="Memory pool over time">'
    ]
    parts += [
        f'<rect class="buffer" x="{x(first)}" y="{y(t.offset + t.bytes)}" '
        f'width="{(last + 1 - first) * WIDTH / positions:.2f}" height="{t.bytes * HEIGHT / most:.2f}" '
        f'fill="{_colour(t)}"><title>{escape(_describe(t))}</title></rect>'
        for t in report.tensors
        if t.offset is not None and t.bytes and t.kind != "view"
        for first, last in t.segments or [[t.first, t.last]]
    ]
    points = [
        f"{x(position + side)},{y(size)}" for position, size in enumerate(report.timeline) for side in (0, 1)
    ]
    parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="#000" stroke-width="1.2"/>')
    parts += [
        f'<line x1="{_LEFT}" x2="{_LEFT + WIDTH}" y1="{y(0)}" y2="{y(0)}" stroke="#888"/>',
        f'<line x1="{_LEFT}" x2="{_LEFT}" y1="{y(0)}" y2="{y(most)}" stroke="#888"/>',
    ]
    parts += [
        f'<text x="{_LEFT - 6}" y="{y(most * i / 4)}" dy="4" text-anchor="end">{format_size(most * i // 4)}</text>'
        for i in range(5)
    ]
    parts += [
        f'<text x="{x(positions * i // 4)}" y="{HEIGHT + 28}" text-anchor="middle">{positions * i // 4}</text>'
        for i in range(5)
    ]
    parts.append(
        f'<text x="{x(report.peak_position + 0.5)}" y="{HEIGHT + 44}" text-anchor="middle">peak: '
        f"{escape(report.peak_node)}</text>"
    )
    return "\n".join([*parts, "</svg>"])


def _colour(tensor: Tensor) -> str:
    """A colour of the node's own, the same in every report."""
    hue = crc32(tensor.node.encode()) % 360
    return f"hsl({hue} 60% {75 if tensor.kind == 'workspace' else 60}%)"


def _describe(t: Tensor) -> str:
    return f"{t.name} ({t.kind})\nnode {t.node}\n{t.bytes:,} bytes at {t.offset:,}\npositions {t.first} to {t.last}"


def _table(header: tuple[str, ...], rows: list[tuple[str | int, ...]]) -> str:
    def cells(tag: str, row: tuple[str | int, ...]) -> str:
        return "".join(
            f'<{tag} class="n">{cell}</{tag}>' if _is_number(cell) else f"<{tag}>{escape(str(cell))}</{tag}>"
            for cell in row
        )

    lines = [f"<tr>{cells('th', header)}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return "\n".join(["<table>", *lines, "</table>"])


def _is_number(cell: str | int) -> bool:
    return str(cell).lstrip("+-").replace(",", "").isdigit()
