"""Draws results: bars of ratios, and latency over percentiles with the tail spread out.

The file name decides between PNG and SVG.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quintet.bench.wire import BenchError
from quintet.model.extras import load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {".png", ".svg"}
DOTS_PER_INCH = 130
COLOURS = ("#1f5fa8", "#d9822b", "#6a9f58", "#a24f7b", "#7f7f7f", "#8c6d31")
Curve = Sequence[tuple[float, float]]


def _use_matplotlib() -> None:
    # No window: benchmarks run on machines without a screen.
    load("matplotlib", "a picture", "bench").use("Agg")


def _check(path: Path) -> None:
    if path.suffix.lower() not in KINDS:
        raise BenchError(f"cannot draw {path.name}: the name must end with .png or .svg.")


def _latency_axes(axes: "Axes", curves: Mapping[str, Curve], title: str) -> None:
    for number, (name, curve) in enumerate(curves.items()):
        # Equal steps for equal numbers of nines: 90 %, 99 %, 99.9 %.
        across = [1.0 / (1.0 - percent / 100.0) for percent, _ in curve]
        axes.plot(across, [value for _, value in curve], label=name, color=COLOURS[number % len(COLOURS)])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([1, 10, 100, 1000, 10_000, 100_000], ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"])
    axes.set_ylabel("latency, µs")
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend(fontsize=8)


def draw_latency(path: Path, curves: Mapping[str, Curve], title: str, foot: str) -> None:
    """Latency over percentiles, one line per name."""
    _check(path)
    _use_matplotlib()
    from matplotlib import pyplot as plot

    figure, axes = plot.subplots(figsize=(8, 5))
    _latency_axes(axes, curves, title)
    _save(figure, path, foot)


def draw_comparison(
    path: Path, ratios: Sequence[tuple[str, float, float | None]], curves: Mapping[str, Curve], title: str, foot: str
) -> None:
    """The side-by-side picture: (load, ratio, target) as bars with a mark at the target, and the latency curves if any."""
    _check(path)
    _use_matplotlib()
    from matplotlib import pyplot as plot

    heights = [max(1, len(ratios)), 7][: 2 if curves else 1]
    size = (10, 0.45 * len(ratios) + (4.5 if curves else 1.5))
    figure, axes = plot.subplots(
        len(heights), 1, figsize=size, height_ratios=heights, layout="constrained", squeeze=False
    )
    above = axes[0][0]
    places = list(range(len(ratios)))
    colours = [COLOURS[0] if target is None or ratio >= target else COLOURS[1] for _, ratio, target in ratios]
    above.barh(places, [ratio for _, ratio, _ in ratios], color=colours, height=0.6)
    for place, (_, ratio, target) in zip(places, ratios, strict=True):
        above.text(ratio, place, f" {ratio:.2f}x", va="center", fontsize=8)
        if target is not None:
            above.plot([target, target], [place - 0.4, place + 0.4], color="black", linewidth=2)
    above.set_yticks(places, [load for load, _, _ in ratios], fontsize=8)
    above.invert_yaxis()
    above.axvline(1.0, color="grey", linewidth=0.8)
    above.set_xlabel("times better than the peer (black mark: target)")
    above.set_title(title, fontsize=10)
    above.margins(x=0.15)
    if curves:
        _latency_axes(axes[1][0], curves, "latency end to end at a fixed rate, from the time a message was due")
    _save(figure, path, foot)


def _save(figure: "Figure", path: Path, foot: str) -> None:
    from matplotlib import pyplot
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, 0.02, 1, 0.98))  # leave the foot its line
    else:
        figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.text(0.01, 0.005, foot, fontsize=5.5, color="grey")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)
