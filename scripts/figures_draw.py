# SPDX-License-Identifier: Apache-2.0
"""The pictures of scripts/figures.py. The same lines give the same bytes: no date, fixed ids, text as text."""
import io

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({
    "svg.hashsalt": "tegula", "svg.fonttype": "none", "font.family": "DejaVu Sans", "font.size": 9,
    "axes.grid": True, "grid.color": "#dddddd", "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "figure.facecolor": "white"})

from matplotlib import pyplot, ticker  # noqa: E402

from figures import DTYPES, ORDERS, PLACES, RATIOS, SEQLENS  # noqa: E402

COLOURS = {"f32": "#1f5fa8", "bf16": "#c8501e", "f16": "#2f8f4e", "e4m3": "#7b4fa0"}


def draw(kind, machine, title):
    figure = {"pytorch": draw_ratios, "limits": draw_limits, "scaling": draw_scaling}[kind](machine)
    figure.suptitle(title, fontsize=10)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return stream.getvalue()


def line_of(axes, points, colour, label, dashed):
    """A line through the points that exist. points: (x, y or None)."""
    known = [(x, y) for x, y in points if y is not None]
    if known:
        axes.plot(*zip(*known), "o--" if dashed else "o-", color=colour, label=label, markersize=4, linewidth=1.3,
                  markerfacecolor="white" if dashed else colour)


def as_powers_of_two(axis, ticks):
    axis.set_major_locator(ticker.FixedLocator(ticks))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_locator(ticker.NullLocator())


def draw_ratios(machine):
    def ratio(cell):
        return machine.sdpa[cell]["ratio"] if cell in machine.sdpa else None

    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3.8), layout="constrained", sharey=True)
    for panel, mask in zip(panels, ("full", "causal")):
        for dtype in ("f32", "bf16", "f16"):
            for dim in (64, 128):
                line_of(panel, [(s, ratio(f"forward-{dtype}-d{dim}-{mask}-s{s}")) for s in SEQLENS], COLOURS[dtype],
                        f"{DTYPES[dtype]}, head_dim {dim}", dim == 128)
        panel.set(title=f"forward, {mask}", xlabel="sequence length", xscale="log")
        as_powers_of_two(panel.xaxis, SEQLENS)
    for dtype in ("f32", "bf16"):
        for key, place in PLACES.items():
            line_of(panels[2], [(r, ratio(f"decode-{dtype}-ratio{r}-dense-{key}")) for r in RATIOS], COLOURS[dtype],
                    f"{DTYPES[dtype]} cache in {place}", key == "l3")
    panels[2].set(title="decode, 8k keys", xlabel="query heads a kv head", xscale="log")
    as_powers_of_two(panels[2].xaxis, RATIOS)
    panels[0].set(ylabel="scaled_dot_product_attention / ours", yscale="log")
    as_powers_of_two(panels[0].yaxis, [2.0**power for power in range(-1, 8)])
    for panel in panels:
        panel.axhline(1, color="black", linewidth=0.8)
    for group, place in ((panels[:2], "outside lower left"), (panels[2:], "outside lower right")):
        labelled = {label: handle for panel in group for handle, label in zip(*panel.get_legend_handles_labels())}
        figure.legend(labelled.values(), labelled, loc=place, ncols=3, fontsize=7.5, frameon=False, handlelength=3)
    return figure


def draw_limits(machine):
    forward = [(f"forward-{dtype}-d{dim}-{mask}-s2048", f"{DTYPES[dtype]}, head_dim {dim}, {mask}", dtype)
               for dtype in ("f32", "bf16", "f16") for dim in (64, 128) for mask in ("full", "causal")]
    decode = [(f"decode-{dtype}-ratio{ratio}-{key}-{place}",
               f"{DTYPES[dtype]} in {PLACES[place]}, {order}, ratio {ratio}", dtype)
              for place in PLACES for dtype in ("bf16", "f32", "e4m3") for key, order in ORDERS.items()
              for ratio in (1, 4)]
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 5), layout="constrained")
    for panel, title, bars in zip(panels, ("forward, S 2048, of peak arithmetic", "decode, of read bandwidth"),
                                  (forward, decode)):
        bars = [(label, 100 * machine.limits[cell]["of_limit"], COLOURS[dtype])
                for cell, label, dtype in bars if machine.limits.get(cell, {}).get("of_limit")]
        if bars:
            labels, shares, colours = zip(*bars)
            drawn = panel.barh(range(len(bars)), shares, color=colours)
            panel.bar_label(drawn, fmt="%.0f", padding=2, fontsize=7)
            panel.set_yticks(range(len(bars)), labels, fontsize=7)
            panel.invert_yaxis()
        panel.set(title=title, xlabel="%", xlim=(0, 105))
        panel.grid(axis="y", visible=False)
    return figure


def draw_scaling(machine):
    figure, axes = pyplot.subplots(figsize=(5.5, 4), layout="constrained")
    speedups = machine.speedups()
    counts = sorted({threads for run in speedups.values() for threads in run})
    axes.plot(counts, counts, color="black", linewidth=0.8, label="threads")
    for (cell, run), colour in zip(sorted(speedups.items()), COLOURS.values()):
        line_of(axes, sorted(run.items()), colour, cell, cell.startswith("decode"))
    axes.set(xlabel="threads", ylabel="speed over one thread", xscale="log", yscale="log")
    as_powers_of_two(axes.xaxis, counts)
    as_powers_of_two(axes.yaxis, counts)
    axes.legend(fontsize=7.5, frameon=False)
    return figure
