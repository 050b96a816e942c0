"""Markdown tables of a run."""

import math
from collections.abc import Iterable, Sequence

from benchmarks.bars import BOTH, FORWARD, MIB, bars
from benchmarks.contenders import CONTENDERS
from benchmarks.record import Measurement

FLOOR, FORMULA = "torch.sort", "paper-formula"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An aligned table: the first column to the left, the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    lines.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])

    def text(cells: Sequence[str]) -> str:
        padded = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "| " + " | ".join((cells[0].ljust(widths[0]), *padded)) + " |"

    return "\n".join(map(text, lines))


def milliseconds(seconds: float | None) -> str:
    """A time, or a dash where there is none."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3f}" if seconds < 0.01 else f"{seconds * 1e3:,.1f}"


def ratio_of(above: float | None, below: float | None) -> str:
    """One time over another, or a dash where one is missing."""
    if above is None or below is None:
        return "-"
    ratio = above / below
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:#.3g}x"


def _mebibytes(size: float | None) -> str:
    return "-" if size is None else f"{size / MIB:,.0f}"


def speed_table(measurements: Iterable[Measurement]) -> str:
    """Time and peak memory by size and contender; the unit is `torch.sort` forward."""
    rows: dict[tuple, dict[tuple[str, str], Measurement]] = {}
    for one in measurements:
        if one.kind in ("seconds", "bytes"):
            at = (one.n, one.batch, list(CONTENDERS).index(one.contender), one.tau)
            rows.setdefault(at, {})[one.kind, one.mode] = one
    first = {
        (one.contender, one.batch, one.n, one.mode): one.value
        for row in rows.values()
        for one in row.values()
        if one.kind == "seconds" and one.contender in (FLOOR, FORMULA)
    }

    lines = []
    for _, row in sorted(rows.items()):
        some = next(iter(row.values()))
        size = (some.batch, some.n)
        value = {at: one.value for at, one in row.items()}
        if not any(value.values()):  # the notes below the table say why
            continue
        forward, both = (value.get(("seconds", mode)) for mode in (FORWARD, BOTH))
        floor = first.get((FLOOR, *size, FORWARD))
        lines.append(
            (
                f"{some.batch}x{some.n}",
                some.contender,
                CONTENDERS[some.contender].gives,
                "-" if some.contender == FLOOR else f"{some.tau:g}",
                milliseconds(forward),
                ratio_of(forward, floor),
                milliseconds(both),
                ratio_of(both, floor),
                ratio_of(first.get((FORMULA, *size, BOTH)), both),
                _mebibytes(value.get(("bytes", FORWARD))),
                _mebibytes(value.get(("bytes", BOTH))),
            )
        )
    header = (
        "lists",
        "contender",
        "gives",
        "tau",
        "fwd ms",
        "/ sort",
        "fwd+bwd ms",
        "/ sort",
        "formula /",
        "fwd MiB",
        "fwd+bwd MiB",
    )
    return markdown(header, lines)


def notes(measurements: Iterable[Measurement]) -> str:
    """Who has no number where, and why."""
    sizes: dict[tuple[str, str], dict[str, None]] = {}  # dicts as ordered sets
    for one in measurements:
        if one.note:
            sizes.setdefault((one.contender, one.note), {})[f"{one.batch}x{one.n}"] = None
    names: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (who, why), at in sizes.items():
        names.setdefault((why, tuple(at)), []).append(who)
    lines = (f"- {', '.join(at)}: {', '.join(who)}: {why}" for (why, at), who in names.items())
    return "\n".join(lines)


def accuracy_table(measurements: Iterable[Measurement]) -> str:
    """The worst case of every accuracy check at every length, and where it was found."""
    cases: dict[tuple[str, str, int], list[Measurement]] = {}
    for one in measurements:
        if one.kind not in ("seconds", "bytes"):
            cases.setdefault((one.kind, one.contender, one.n), []).append(one)

    def badness(one: Measurement) -> float:
        value = float(one.value or 0)
        return math.inf if math.isnan(value) else value

    lines = []
    for (check, who, n), found in sorted(cases.items()):
        worst = max(found, key=badness)
        value = float(worst.value or 0)
        number = f"{value:,.0f}" if value.is_integer() else f"{value:.1e}"
        where = f"{worst.mode}, tau {worst.tau:g}" if value else "everywhere"
        lines.append((check, who, str(n), number, where))
    return markdown(("check", "contender", "n", "worst", "where"), lines)


def bars_table(measurements: Iterable[Measurement]) -> str:
    """Every bar with its verdict."""
    lines = (
        (
            bar.what,
            "-" if bar.worst is None else bar.form(bar.worst),
            bar.form(bar.limit),
            "-" if bar.aim is None else bar.form(bar.aim),
            bar.verdict,
        )
        for bar in bars(measurements)
    )
    return markdown(("what", "measured", "bar", "aim", "verdict"), lines)
