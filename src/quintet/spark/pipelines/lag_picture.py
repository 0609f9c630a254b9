"""Draws the lag of each group over the samples, and its latency in percentiles.

matplotlib draws PNG or SVG, by the suffix of the file; without matplotlib a plain SVG of the lags is written. Only the groups with the
longest lags are drawn: nobody could read more.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

import msgspec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN_MAX: Final = 12  # groups
DOTS_PER_INCH: Final = 130
COLOURS: Final = ("#1f5fa8", "#d9822b", "#6a9f58", "#a24f7b", "#7f7f7f", "#8c6d31")
WORDS: Final = ("p50", "p95", "p99")
LINE: Final = 28  # points per bar of the plain SVG
WIDTH: Final = 800

Key = tuple[str, str]  # group, topic


class Sample(msgspec.Struct, frozen=True):
    """The lag of one group in one topic at one moment."""

    at: float  # seconds since the first sample
    lag: int
    seconds: float


def draw(path: str, samples: Mapping[Key, Sequence[Sample]], latencies: Mapping[Key, Sequence[float]]) -> str:
    """Draw, and return the path of the file: without matplotlib its suffix becomes .svg."""
    target = Path(path)
    if target.suffix.lower() not in (".png", ".svg"):
        raise ValueError(f"picture={path}: the name must end with .png or .svg")
    longest = sorted(samples, key=lambda key: (-samples[key][-1].lag, key))[:DRAWN_MAX]
    target.parent.mkdir(parents=True, exist_ok=True)
    if importlib.util.find_spec("matplotlib") is None:
        target = target.with_suffix(".svg")
        target.write_text(_plain({key: samples[key][-1].lag for key in longest}), encoding="utf-8")
    else:
        _plot(
            target, {key: samples[key] for key in longest}, {key: latencies[key] for key in longest if key in latencies}
        )
    return str(target)


def _plot(target: Path, samples: Mapping[Key, Sequence[Sample]], latencies: Mapping[Key, Sequence[float]]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")  # no window: pipelines run on machines without a screen
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    left, right = panels
    for number, (key, found) in enumerate(samples.items()):
        colour = COLOURS[number % len(COLOURS)]
        left.plot([each.at for each in found], [each.lag for each in found], "o-", color=colour, label=_name(key))
        if key in latencies:
            right.plot(WORDS, latencies[key], "o-", color=colour, label=_name(key))
    _axes(left, "lag", "seconds", "messages")
    _axes(right, "latency from publish to commit", "", "milliseconds")
    left.set_ylim(bottom=0)
    if latencies:
        right.set_ylim(bottom=0)
    left.legend(fontsize=8)
    figure.savefig(target, dpi=DOTS_PER_INCH)
    pyplot.close(figure)


def _axes(axes: "Axes", title: str, across: str, up: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)


def _plain(lags: Mapping[Key, int]) -> str:
    """Bars of the last sample."""
    most = max([*lags.values(), 1])
    bars = []
    for number, (key, lag) in enumerate(lags.items()):
        y = LINE * (number + 1)
        bars.append(
            f'<text x="4" y="{y + 14}">{escape(_name(key))}</text>'
            f'<rect x="260" y="{y}" width="{max(1, 440 * lag // most)}" height="18" fill="{COLOURS[0]}"/>'
            f'<text x="{266 + 440 * lag // most}" y="{y + 14}">{lag}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{LINE * (len(lags) + 2)}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="4" y="18" font-weight="bold">lag in messages</text>{"".join(bars)}</svg>\n'
    )


def _name(key: Key) -> str:
    return f"{key[0]} on {key[1]}"
