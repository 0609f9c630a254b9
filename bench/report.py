"""What a side-by-side run leaves behind: a table on the terminal, JSON, a picture, and a Markdown table to copy."""

import json
from dataclasses import asdict
from pathlib import Path

from bench.harness import Comparison, Figure
from rich.console import Console
from rich.table import Table

from quintet.bench.machine import headline
from quintet.bench.picture import draw_comparison

Facts = dict[str, str | int | float]


def amount(value: float, unit: str) -> str:
    """A figure as people read it."""
    if unit == "B/s":
        return f"{value / 1e6:,.0f} MB/s"
    if unit in ("s", "us", "ns/msg", "B", "files"):
        return f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
    if value >= 1e6:
        return f"{value / 1e6:,.2f} M/s"
    return f"{value / 1e3:,.1f} k/s"


def target_of(comparison: Comparison) -> str:
    """The target in words."""
    if comparison.target is None:
        return ""
    if comparison.absolute:
        return f"at {'least' if comparison.better == 'higher' else 'most'} {amount(comparison.target, comparison.unit)}"
    return f"at {'least' if comparison.better == 'higher' else 'most'} {comparison.target:g}x"


def verdict(comparison: Comparison, figure: Figure) -> tuple[str, str]:
    """(ratio or empty, verdict or empty) for a row; only our own row has them."""
    if figure is not comparison.ours:
        return "", ""
    ratio = f"{comparison.ratio:.2f}x" if comparison.ratio is not None and not comparison.absolute else ""
    reached = comparison.reached
    return ratio, "" if reached is None else "reached" if reached else "MISSED"


def table(comparisons: list[Comparison], facts: Facts, versions: dict[str, str | None]) -> Table:
    """The table of a run."""
    peers = ", ".join(f"{name} {version or 'MISSING'}" for name, version in versions.items())
    made = Table(title=f"{headline(facts)}\npeers: {peers}", title_justify="left", title_style="dim")
    for column, justify in (("load", "left"), ("side", "left"), ("median", "right"), ("spread", "right")):
        made.add_column(column, justify=justify)  # type: ignore[arg-type]
    for column in ("ratio", "target", "", "note"):
        made.add_column(column, justify="right")
    for comparison in comparisons:
        for place, figure in enumerate(comparison.figures):
            ratio, word = verdict(comparison, figure)
            made.add_row(
                comparison.load if place == 0 else "",
                figure.side + ("" if figure.counts else " (information)"),
                amount(figure.median, comparison.unit),
                f"±{figure.spread * 50:.0f} %" if len(figure.values) > 1 else "",
                ratio,
                target_of(comparison) if figure is comparison.ours else "",
                f"[{'green' if word == 'reached' else 'bold red'}]{word}[/]" if word else "",
                figure.note,
                end_section=place == len(comparison.figures) - 1,
            )
    return made


def markdown(comparisons: list[Comparison], facts: Facts, versions: dict[str, str | None]) -> str:
    """The same for bench/README.md."""
    peers = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    lines = [f"{headline(facts)}; peers: {peers}", "", "| load | quintet | peer | ratio | target | |"]
    lines.append("|---|---|---|---|---|---|")
    for comparison in comparisons:
        ours = comparison.ours
        others = "; ".join(
            f"{figure.side} {amount(figure.median, comparison.unit)}"
            for figure in comparison.figures
            if figure is not ours
        )
        mine = f"{amount(ours.median, comparison.unit)} (±{ours.spread * 50:.0f} %)" if ours else "not run"
        ratio, word = verdict(comparison, ours) if ours else ("", "")
        lines.append(f"| {comparison.load} | {mine} | {others} | {ratio} | {target_of(comparison)} | {word} |")
    return "\n".join(lines) + "\n" + _notes(comparisons)


def _notes(comparisons: list[Comparison]) -> str:
    """What sides say besides their figures, as a table of its own; empty if none says anything."""
    said = [(one.load, figure.side, figure.note) for one in comparisons for figure in one.figures if figure.note]
    lines = ["", "| load | side | of a repetition, median |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(words)} |" for words in said)]) + "\n" if said else ""


def save(
    directory: Path,
    comparisons: list[Comparison],
    facts: Facts,
    versions: dict[str, str | None],
    skipped: list[str],
    console: Console,
    prefix: str = "",
) -> None:
    """Write JSON, Markdown and the picture, named after the date."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = prefix + str(facts["date"]).replace(":", "").replace("+0000", "Z")
    rows = [
        asdict(comparison)
        | {"ratio": comparison.ratio, "reached": comparison.reached}
        | {"medians": {figure.side: figure.median for figure in comparison.figures}}
        for comparison in comparisons
    ]
    result = {"machine": facts, "peers": versions, "skipped": skipped, "results": rows}
    (directory / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    (directory / f"{stem}.md").write_text(markdown(comparisons, facts, versions))
    ratios = []
    curves: dict[str, list[tuple[float, float]]] = {}
    for comparison in comparisons:
        curves |= comparison.curves
        if comparison.ratio is None or comparison.absolute:
            continue
        # Drawn so that longer is better also where less is.
        flip = comparison.better == "lower"
        target = comparison.target
        ratios.append(
            (
                comparison.load,
                1 / comparison.ratio if flip else comparison.ratio,
                (1 / target if flip else target) if target is not None else None,
            )
        )
    if ratios or curves:
        draw_comparison(directory / f"{stem}.png", ratios, curves, "Quintet beside its peers", headline(facts))
    console.print(f"written: {stem}.json, .md and .png in {directory.name}/")
