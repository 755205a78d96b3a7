#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/cases/table/*.jsonl: deterministic, standard library only. The tables are committed; tests need no Python.

forward_pairs   every legal pair of feature values of axes.json, twice, greedily packed (tests/unit/case_table_test.cc checks it)
forward_named   sweeps and special cases: sizes, head dims, ratios, empties, masked rows, pages, splits, sinks
forward_gpu     tag "gpu": the pairs again with what the CUDA kernel takes alone, and sizes beside its tiles' edges
append_kv, combine
The ids are stable: a family's ids count up, new cases go to the end of a family.
"""
import itertools
import json
import pathlib
import random

HERE = pathlib.Path(__file__).resolve().parent
AXES = json.loads((HERE / "axes.json").read_text())
FAST_COST = 4.0e6  # multiply-adds of the oracle: what a fast case may cost

DIMS = {"1": [1], "odd": [3, 5, 7, 9, 31, 33], "even<64": [2, 8, 16, 24, 32, 40, 48], "64": [64],
        "65-127": [65, 72, 80, 96, 112, 120, 127], "128": [128], "129-255": [129, 136, 160, 192], "256": [256],
        ">256": [257, 264, 288]}
ROWS_Q = {"1": [1], "2-16": [2, 3, 7, 13], "17-64": [17, 31, 33], ">64": [65, 67, 129]}
ROWS_K = {"1-2": [1, 2], "3-64": [5, 31, 33, 63], "65-256": [65, 127, 129, 191], ">256": [257, 259, 300]}
PAGES = {"none": 0, "1": 1, "odd": 7, "16": 16, "64": 64, "256": 256}
WIDE = ("f32", "f16", "bf16")
EIGHT = ("e4m3", "e5m2")

DEFAULTS = {
    "op": "forward", "num_heads_q": 1, "num_heads_kv": 1, "head_dim": 64, "head_dim_v": 64, "q_dtype": "f32",
    "kv_dtype": "f32", "o_dtype": "f32", "layout_q": "dense", "layout_k": "dense", "lse": True, "window_left": -1,
    "window_right": -1, "rotary_f32": True, "new_dtype": "f32", "strides_q": "packed", "strides_k": "packed",
    "strides_v": "packed", "strides_o": "packed", "strides_lse": "packed", "values": "random", "alibi": "none",
    "descale": "none", "new_tokens": "none", "bias_dtype": "none"}


class Table:
    def __init__(self, name, prefix):
        self.name, self.prefix, self.cases, self.ids = name, prefix, [], set()

    def add(self, label, case):
        case = dict(case)
        case_id = f"{self.prefix}-{label}"
        assert case_id not in self.ids, case_id
        self.ids.add(case_id)
        seed = random.Random(case_id).getrandbits(53)
        tags = list(case.pop("tags", []))
        if cost(case) <= FAST_COST:
            tags.insert(0, "fast")
        line = {"id": case_id, "tags": tags, "op": case.pop("op", "forward"), "seed": seed}
        for key, value in case.items():
            empty = value in (False, None, "", []) or (value == 0 and not isinstance(value, bool))
            if key in ("seqlens_q", "seqlens_k") or not (value == DEFAULTS.get(key) or (key not in DEFAULTS and empty)):
                line[key] = value
        self.cases.append(line)

    def write(self):
        path = HERE / "table" / f"{self.name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(case, separators=(",", ":")) + "\n" for case in self.cases))
        fast = sum("fast" in case["tags"] for case in self.cases)
        total = sum(cost(case) for case in self.cases)
        print(f"{self.name}: {len(self.cases)} cases, {fast} fast, {total / 1e9:.2f} G multiply-adds")


def cost(case):
    """Multiply-adds of the oracle, masks ignored."""
    if case.get("op", "forward") != "forward":
        return 1e5
    pairs = sum(q * k for q, k in zip(case["seqlens_q"], case["seqlens_k"]))
    return pairs * case.get("num_heads_q", 1) * (case.get("head_dim", 64) + 4 * case.get("head_dim_v", 64))


# ---- every legal pair -------------------------------------------------------------------------------------------------

def legal_table(illegal):
    bad = set()
    for rule in illegal:
        for a, b in itertools.product(rule["values"], rule["are"]):
            bad.add((rule["axis"], a, rule["with"], b))
            bad.add((rule["with"], b, rule["axis"], a))
    return bad


def possible(row):
    """What no pair says: constraints between three and more features, on a partial row."""
    get = row.get
    rows_q, rows_k, lengths = get("rows_q"), get("rows_k"), get("lengths")
    if rows_q and rows_k and lengths:
        q_low, q_high = min(ROWS_Q[rows_q]), max(ROWS_Q[rows_q])
        k_low, k_high = min(ROWS_K[rows_k]), max(ROWS_K[rows_k])
        if rows_q == ">64":
            q_high = 10 ** 6
        if lengths == "q<k" and not q_low < k_high:
            return False
        if lengths == "q>k" and not q_high > k_low:
            return False
        if lengths == "q=k" and (rows_q, rows_k) not in (("1", "1-2"), ("2-16", "1-2"), ("2-16", "3-64"),
                                                         ("17-64", "3-64"), (">64", "65-256"), (">64", ">256")):
            return False
    if get("empty") in ("q", "both") and get("layout_q") == "dense" and get("seqused_q") == "off":
        return False
    if get("empty") in ("k", "both") and get("layout_k") == "dense" and get("seqused_k") == "off":
        return False
    return floor_cost(row) <= 4.0e8


def floor_cost(row):
    q = min(ROWS_Q[row["rows_q"]]) if "rows_q" in row else 1
    k = min(ROWS_K[row["rows_k"]]) if "rows_k" in row else 1
    d = min(DIMS[row["head_dim"]]) if "head_dim" in row else 1
    dv = min(DIMS[row["head_dim_v"]]) if "head_dim_v" in row else 1
    heads = int(row.get("ratio", "1")) * (2 if row.get("heads_kv") == "many" else 1)
    return q * k * (d + 4 * dv) * heads * {"1": 1, "2-4": 1.5, ">=5": 2}[row.get("batch", "1")]


def cover_pairs(seed, axes=AXES["axes"], illegal=AXES["illegal"]):
    rng = random.Random(seed)
    names = sorted(axes)
    bad = legal_table(illegal)

    def fits(row, axis, value):
        if any((axis, value, other, row[other]) in bad for other in row):
            return False
        row[axis] = value
        fine = possible(row)
        del row[axis]
        return fine

    wanted = set()
    for a, b in itertools.combinations(names, 2):
        for x, y in itertools.product(axes[a], axes[b]):
            if (a, x, b, y) not in bad:
                wanted.add((a, x, b, y))

    def key(a, x, b, y):
        return (a, x, b, y) if a < b else (b, y, a, x)

    def build(start):
        """A full row from a partial one, or None if it ran into a corner."""
        row = dict(start)
        order = [name for name in names if name not in row]
        rng.shuffle(order)
        # Axes with hard constraints first: they corner the others.
        hard = ["layout_k", "seqused_k", "seqused_q", "layout_q", "q_dtype", "kv_dtype", "empty", "batch", "lengths",
                "rows_q", "rows_k"]
        order.sort(key=lambda name: name not in hard)
        for axis in order:
            best, options = -1, []
            for value in axes[axis]:
                if not fits(row, axis, value):
                    continue
                gain = sum(key(axis, value, other, row[other]) in wanted for other in row)
                if gain > best:
                    best, options = gain, [value]
                elif gain == best:
                    options.append(value)
            if not options:
                return None
            row[axis] = rng.choice(options)
        return row

    rows = []
    while wanted:
        ordered = sorted(wanted)
        best, best_gain = None, 0
        for _ in range(12):
            a, x, b, y = rng.choice(ordered)
            if not possible({a: x, b: y}):
                continue
            row = build({a: x, b: y})
            if row is None:
                continue
            gain = sum((p, row[p], q, row[q]) in wanted for p, q in itertools.combinations(names, 2))
            gain -= floor_cost(row) / 2.0e7
            if best is None or gain > best_gain:
                best, best_gain = row, gain
        if best is None:
            continue
        rows.append(best)
        wanted -= {(p, best[p], q, best[q]) for p, q in itertools.combinations(names, 2)}
    return rows


def broadcast_kind(rng, batch, tokens, heads, ragged):
    kinds = []
    if heads > 1:
        kinds.append("broadcast_heads")
    if batch > 1 and not ragged:
        kinds.append("broadcast_batch")
    if tokens > 1:
        kinds.append("broadcast_tokens")
    return rng.choice(kinds or ["broadcast_heads"])


def choose_lengths(rng, row):
    """The first sequence carries the classes; the others are at most as long and of the same relation."""
    batch = {"1": 1, "2-4": rng.choice([2, 3]), ">=5": 5}[row["batch"]]
    options = []
    for q in ROWS_Q[row["rows_q"]] + ([259, 300] if row["rows_q"] == ">64" else []):
        for k in ROWS_K[row["rows_k"]]:
            equal_k = q if row["lengths"] == "q=k" else k
            if row["lengths"] == "q<k" and not q < k or row["lengths"] == "q>k" and not q > k:
                continue
            if row["lengths"] == "q=k" and not min(ROWS_K[row["rows_k"]]) <= q <= max(ROWS_K[row["rows_k"]]):
                continue
            options.append((q, equal_k))
    options.sort()
    q0, k0 = rng.choice(options[:max(1, len(options) // 2)])
    free_q = row["layout_q"] == "ragged" or row["seqused_q"] == "on"
    free_k = row["layout_k"] != "dense" or row["seqused_k"] == "on"
    lens_q, lens_k = [q0], [k0]
    for _ in range(batch - 1):
        q, k = q0, k0
        if row["lengths"] == "q=k":
            if free_q and free_k:
                q = k = rng.randint(1, q0)
        else:
            if free_q and row["lengths"] == "q>k":
                q = rng.randint(max(1, min(k0, q0 - 1)), q0) if not free_k else rng.randint(1, q0)
            elif free_q:
                q = rng.randint(1, q0)
            if free_k and row["lengths"] == "q<k":
                k = rng.randint(q, k0)
            elif free_k:
                k = rng.randint(1, min(k0, max(q - 1, 1)))
        lens_q.append(q)
        lens_k.append(k)
    if row["empty"] in ("q", "both"):
        lens_q[-1] = 0
    if row["empty"] == "k":
        lens_k[-1] = 0
    if row["empty"] == "both":
        lens_k[1 if batch > 2 else -1] = 0
    return lens_q, lens_k


def concrete(row, label, dims=DIMS):
    rng = random.Random(label)
    lens_q, lens_k = choose_lengths(rng, row)
    batch = len(lens_q)
    heads_kv = 1 if row["heads_kv"] == "one" else (2 if int(row["ratio"]) > 5 else rng.choice([2, 3]))
    heads_q = heads_kv * int(row["ratio"])
    case = {"q_dtype": row["q_dtype"], "kv_dtype": row["kv_dtype"], "o_dtype": row["o_dtype"], "num_heads_q": heads_q,
            "num_heads_kv": heads_kv, "head_dim": rng.choice(dims[row["head_dim"]]),
            "head_dim_v": rng.choice(dims[row["head_dim_v"]]), "layout_q": row["layout_q"], "layout_k": row["layout_k"],
            "seqlens_q": lens_q, "seqlens_k": lens_k, "page_size": PAGES[row["page_size"]],
            "short_table": row["table_tail"] == "short", "seqused_q": row["seqused_q"] == "on",
            "seqused_k": row["seqused_k"] == "on", "sink": row["sink"] == "on", "alibi": row["alibi"],
            "lse": row["lse"] == "on", "descale": row["descale"], "values": row["values"]}
    if case["seqused_q"]:
        case["slack_q"] = rng.choice([1, 3, 6])
    if case["seqused_k"] and case["layout_k"] in ("dense", "ragged"):
        case["slack_k"] = rng.choice([1, 5, 17])
    mask = row["mask"]
    case["causal"] = mask.startswith("causal")
    if mask in ("window", "window_left", "causal_window"):
        case["window_left"] = rng.choice([0, 3, 7, 16, 40])
    if mask in ("window", "window_right"):
        case["window_right"] = rng.choice([0, 2, 5, 20])
    if mask.endswith("chunk"):
        case["attention_chunk"] = rng.choice([1, 5, 16, 64])
    if row["softcap"] == "on":
        case["softcap"] = rng.choice([2.0, 15.0, 50.0])
    if row["scale"] == "given":
        case["softmax_scale"] = rng.choice([0.03125, 0.1, 0.25])
    case["bias_dtype"] = row["q_dtype"] if row["bias"] == "q" else row["bias"]
    if row["bias_broadcast"] not in ("none", "full"):
        case["bias_broadcast"] = rng.choice(["bh", "bq", "bhq"]) if row["bias_broadcast"] == "many" else row["bias_broadcast"]
    if row["leftpad"] == "on":
        case["leftpad_k"] = [(k // 4 + 1 if k > 1 else 0, 0, k)[b % 3] for b, k in enumerate(lens_k)]
    if row["new_tokens"] == "number":
        case["new_tokens"], case["seqlens_new"] = "number", [1] * batch
    elif row["new_tokens"] == "cu":
        case["new_tokens"], case["seqlens_new"] = "cu", [min(k, 1 + b % 3) for b, k in enumerate(lens_k)]
    splits = row["splits"]
    case["num_splits"] = {"auto": 0, "one": 1, "few": rng.choice([2, 3, 7]), "many": rng.choice([64, 128]), "fixed": 0}[splits]
    if splits == "fixed":
        case["fixed_split"] = rng.choice([1, 64, 100, 128])
    case["descale_expanded"] = row["descale"] in ("heads", "batch_heads") and rng.random() < 0.5
    if not case["lse"] or rng.random() < 0.5:
        case["strides_lse"] = "packed"
    else:
        case["strides_lse"] = "padded"
    outer_k = 0 if case["layout_k"] == "ragged" else batch
    tokens_k = case["page_size"] or max(lens_k)
    for name, tokens, heads, ragged in (("q", max(lens_q), heads_q, case["layout_q"] == "ragged"),
                                        ("k", tokens_k, heads_kv, outer_k == 0), ("v", tokens_k, heads_kv, outer_k == 0)):
        kind = row[f"strides_{name}"]
        case[f"strides_{name}"] = broadcast_kind(rng, batch, tokens, heads, ragged) if kind == "broadcast" else kind
    case["strides_o"] = row["strides_o"]
    return case


def forward_pairs():
    # Twice, so that each pair meets different company.
    table = Table("forward_pairs", "pair")
    for n, row in enumerate(cover_pairs(20260101) + cover_pairs(20260102)):
        table.add(f"{n:03d}", concrete(row, f"pair-{n:03d}"))
    return table


# ---- sweeps and special cases -----------------------------------------------------------------------------------------

def forward_named():
    table = Table("forward_named", "fwd")
    types = [("f32", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("bf16", "e4m3"), ("f32", "bf16"), ("e4m3", "e4m3"),
             ("f16", "e5m2"), ("bf16", "f16"), ("e5m2", "e4m3")]
    cycle = itertools.cycle(types)

    def typed(pair=None, **fields):
        q, kv = pair or next(cycle)
        case = {"q_dtype": q, "kv_dtype": kv, "o_dtype": "bf16" if q in EIGHT else q}
        if kv in EIGHT:
            case["descale"] = "one"
        case.update(fields)
        return case

    # Odd sizes: every length of q against every length of k.
    sizes = [1, 2, 31, 33, 127, 129, 257]
    for n, (q, k) in enumerate(itertools.product(sizes, sizes)):
        table.add(f"size-{q}x{k}", typed(seqlens_q=[q], seqlens_k=[k], num_heads_q=2, num_heads_kv=1, causal=n % 2 == 0))

    # Head dims, tails of every vector width; head_dim_v equal and not.
    dims = [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 72, 80, 95, 96, 104, 112, 127, 128, 129, 144, 160,
            176, 192, 200, 224, 255, 256, 257, 320, 384, 448, 511, 512]
    others = itertools.cycle([64, 1, 128, 33, 16, 7, 512, 80])
    for n, dim in enumerate(dims):
        other = dim if n % 2 == 0 else next(others)
        table.add(f"dim-{dim}-{other}", typed(seqlens_q=[5], seqlens_k=[37], num_heads_q=2, num_heads_kv=2, head_dim=dim,
                                              head_dim_v=other, causal=n % 3 == 0))

    # Ratios with a constant of its own in the v of each kv head: a wrong head is visible (and 12, 71: no power of 2).
    for ratio in (1, 2, 3, 5, 7, 8, 12, 16, 71):
        for q in (1, 17):
            table.add(f"ratio-{ratio}-q{q}", typed(seqlens_q=[q, q], seqlens_k=[33, 33], num_heads_q=3 * ratio,
                                                   num_heads_kv=3, head_dim=32, head_dim_v=16, values="heads", causal=True))

    # Nothing, or next to nothing.
    base = {"num_heads_q": 4, "num_heads_kv": 2, "head_dim": 32, "head_dim_v": 24}
    table.add("empty-batch", typed(**base, seqlens_q=[], seqlens_k=[]))
    table.add("empty-batch-ragged", typed(**base, seqlens_q=[], seqlens_k=[], layout_q="ragged", layout_k="ragged"))
    table.add("empty-batch-paged", typed(**base, seqlens_q=[], seqlens_k=[], layout_k="page_table", page_size=16,
                                         seqused_k=True))
    table.add("empty-q", typed(**base, seqlens_q=[0], seqlens_k=[9]))
    table.add("empty-q-ragged", typed(**base, seqlens_q=[0, 0, 0], seqlens_k=[9, 0, 3], layout_q="ragged",
                                      layout_k="ragged", causal=True))
    table.add("empty-k", typed(**base, seqlens_q=[3], seqlens_k=[0]))
    table.add("empty-k-causal", typed(**base, seqlens_q=[3, 3], seqlens_k=[0, 0], causal=True))
    table.add("empty-k-sink", typed(**base, seqlens_q=[3, 1], seqlens_k=[0, 0], layout_q="ragged", sink=True))
    table.add("empty-k-splits", typed(**base, seqlens_q=[1], seqlens_k=[0], num_splits=4))
    table.add("empty-k-paged", typed(**base, seqlens_q=[1, 1], seqlens_k=[0, 0], layout_k="page_indices", page_size=4,
                                     seqused_k=True, fixed_split=64))
    table.add("empty-both", typed(**base, seqlens_q=[0], seqlens_k=[0]))
    table.add("empty-ragged-mix", typed(**base, seqlens_q=[0, 1, 0, 1, 0], seqlens_k=[0, 3, 0, 5, 7], layout_q="ragged",
                                        layout_k="ragged"))
    table.add("empty-used", typed(**base, seqlens_q=[0, 0], seqlens_k=[0, 0], seqused_q=True, seqused_k=True, slack_q=5,
                                  slack_k=9))

    # Rows that see no key.
    rows = dict(base, seqlens_q=[13], seqlens_k=[5])
    for sink in (False, True):
        label = "-sink" if sink else ""
        table.add(f"masked-causal{label}", typed(**rows, causal=True, sink=sink))
        table.add(f"masked-splits{label}", typed(**rows, causal=True, num_splits=4, sink=sink))
        table.add(f"masked-window{label}", typed(**rows, window_left=0, window_right=-1, causal=True, sink=sink))
        table.add(f"masked-chunk{label}", typed(**rows, attention_chunk=4, sink=sink))
        table.add(f"masked-leftpad{label}", typed(**base, seqlens_q=[4, 4], seqlens_k=[9, 9], leftpad_k=[9, 2], sink=sink))
        table.add(f"masked-bias{label}", typed(("bf16", "bf16"), **base, seqlens_q=[40], seqlens_k=[3], bias_dtype="bool",
                                               sink=sink))
        table.add(f"masked-bias-f32{label}", typed(("f32", "f32"), **base, seqlens_q=[40], seqlens_k=[70],
                                                   bias_dtype="f32", bias_broadcast="bh", sink=sink, num_splits=3))

    # Windows, edges inclusive, over lengths below, at and above each other.
    for n, (left, right, causal) in enumerate([(7, 0, False), (0, 0, False), (0, 3, False), (-1, 0, False), (3, -1, False),
                                               (7, 0, True), (63, -1, True), (64, 64, False), (200, 1, False), (127, 0, True)]):
        for q, k in ((40, 40), (9, 140), (70, 20)):
            table.add(f"window-{n}-{q}x{k}", typed(seqlens_q=[q], seqlens_k=[k], window_left=left, window_right=right,
                                                   causal=causal, head_dim=16, head_dim_v=16, values="zero_q"))
    for n, (chunk, q, k) in enumerate([(1, 9, 9), (5, 31, 33), (64, 129, 129), (128, 2, 257), (16, 40, 20), (300, 65, 129)]):
        table.add(f"chunk-{n}", typed(seqlens_q=[q, q], seqlens_k=[k, k], attention_chunk=chunk, causal=n % 2 == 0,
                                      leftpad_k=[0, 3], head_dim=24, head_dim_v=40))

    # Sinks: q = 0, v = 1, so o = n / (n + exp(sink)).
    for n, fields in enumerate([dict(seqlens_q=[5], seqlens_k=[5], causal=True), dict(seqlens_q=[1], seqlens_k=[65]),
                                dict(seqlens_q=[1], seqlens_k=[130], num_splits=2),
                                dict(seqlens_q=[7], seqlens_k=[7], window_left=2, window_right=0),
                                dict(seqlens_q=[3, 1], seqlens_k=[40, 17], layout_q="ragged", layout_k="page_table",
                                     page_size=8, seqused_k=True, causal=True),
                                dict(seqlens_q=[1], seqlens_k=[200], fixed_split=64)]):
        for pair in (("f32", "f32"), ("bf16", "bf16")):
            table.add(f"sink-{n}-{pair[0]}", typed(pair, **fields, num_heads_q=8, num_heads_kv=2, head_dim=16, head_dim_v=16,
                                                   sink=True, values="zero_q"))

    # Decode over splits: more splits than blocks, lengths at block edges.
    for n, k in enumerate([1, 63, 64, 65, 255, 256, 257, 513]):
        for splits in (2, 4, 64, 128):
            table.add(f"split-{k}-{splits}", typed(seqlens_q=[1], seqlens_k=[k], num_heads_q=(1, 3, 5)[n % 3], num_heads_kv=1,
                                                   num_splits=splits, head_dim=32, head_dim_v=32, values=("random", "growing")[n % 2]))

    # Pages: garbage past the used entries, pages left of every window unread, ragged rows, shared pages, head-major.
    for n, page in enumerate([1, 3, 16, 64, 256]):
        for layout in ("page_table", "page_indices"):
            table.add(f"page-{page}-{layout}", typed(
                seqlens_q=[1, 5, 1, 0], seqlens_k=[130, 64, 0, 17], num_heads_q=4, num_heads_kv=2, head_dim=48, head_dim_v=48,
                layout_q="ragged", layout_k=layout, page_size=page, seqused_k=True, causal=True,
                short_table=layout == "page_table" and n % 2 == 0, strides_k=("packed", "head_major")[n % 2],
                strides_v=("head_major", "padded")[n % 2]))
            table.add(f"page-window-{page}-{layout}", typed(
                seqlens_q=[1, 3, 2], seqlens_k=[300, 129, 40], num_heads_q=6, num_heads_kv=3, head_dim=32, head_dim_v=32,
                layout_q="ragged", layout_k=layout, page_size=page, seqused_k=True, window_left=20, window_right=0,
                leftpad_k=[3, 0, 25], sink=n % 2 == 0))
    for n, page in enumerate([4, 16, 32]):
        table.add(f"page-shared-{page}", typed(seqlens_q=[1, 1, 4], seqlens_k=[70, 33, 50], num_heads_q=4, num_heads_kv=1,
                                               head_dim=64, head_dim_v=64, layout_q="ragged", layout_k="page_table",
                                               page_size=page, seqused_k=True, shared_pages=True, causal=True))

    # Tails hold NaN: lengths on and beside page and tile edges.
    for k in (31, 32, 33, 63, 64, 65, 127, 128, 129):
        table.add(f"tail-{k}", typed(seqlens_q=[3, 1], seqlens_k=[k, 1], num_heads_q=2, num_heads_kv=2, seqused_q=True,
                                     seqused_k=True, slack_q=3, slack_k=64, causal=True))

    # Long rows: what loses a few keys of thousands, or is off by 0.2 %, must show.
    for pair in (("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("bf16", "e4m3")):
        table.add(f"long-{pair[0]}-{pair[1]}", typed(pair, seqlens_q=[2], seqlens_k=[4096], num_heads_q=4, num_heads_kv=2))
        table.add(f"long-paged-{pair[0]}-{pair[1]}", typed(pair, seqlens_q=[1, 1], seqlens_k=[3000, 1025], num_heads_q=3,
                                                           num_heads_kv=1, layout_k="page_table", page_size=16,
                                                           seqused_k=True))

    # Descales: swapped, dropped or shared ones show; stride 0 and per head.
    for n, descale in enumerate(["one", "heads", "batch_heads"]):
        for pair in (("bf16", "e4m3"), ("f16", "e5m2"), ("e4m3", "e4m3")):
            for layout in ("dense", "page_table"):
                table.add(f"descale-{descale}-{pair[0]}-{pair[1]}-{layout}", typed(
                    pair, seqlens_q=[3, 3], seqlens_k=[45, 45], num_heads_q=6, num_heads_kv=3, descale=descale,
                    descale_expanded=n == 2, layout_k=layout, page_size=16 if layout != "dense" else 0,
                    seqused_k=layout != "dense"))

    # Few query rows a kv head: every feature where a back end is likely to have a kernel of its own.
    features = {
        "plain": {}, "causal": dict(causal=True), "window": dict(window_left=70, window_right=0), "softcap": dict(softcap=5.0),
        "window-right": dict(window_left=-1, window_right=3), "chunk": dict(attention_chunk=64), "sink": dict(sink=True),
        "alibi": dict(alibi="heads"), "alibi-batch": dict(alibi="batch_heads"), "bias-f32": dict(bias_dtype="f32"),
        "bias-bool": dict(bias_dtype="bool"), "bias-heads": dict(bias_dtype="f32", bias_broadcast="h"),
        "bias-keys": dict(bias_dtype="f32", bias_broadcast="bhq"), "leftpad": dict(leftpad_k=[50, 3]),
        "growing": dict(values="growing"), "large": dict(values="large"), "nan-q": dict(values="nan_q"),
        "nan-k": dict(values="nan_k"), "heads": dict(values="heads"), "fixed": dict(fixed_split=64),
        "splits": dict(num_splits=3), "all": dict(alibi="heads", softcap=20.0, sink=True, window_left=100, causal=True)}
    shapes = [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 8), (2, 1), (2, 3), (3, 2), (4, 2), (8, 1), (1, 16)]
    for n, (label, fields) in enumerate(features.items()):
        for m in range(6):
            q, ratio = shapes[(n + 2 * m) % len(shapes)]
            pair = types[(n + m) % len(types)]
            table.add(f"few-{label}-{m}", typed(pair, seqlens_q=[q, q], seqlens_k=[230, 65], seqused_k=True, slack_k=5,
                                                num_heads_q=2 * ratio, num_heads_kv=2, head_dim=(64, 128, 32, 96)[m % 4],
                                                head_dim_v=(64, 40, 128, 33, 8, 16)[m], **fields))

    # Refused by name on the CPU (tests/cases/refusals/cpu.txt).
    table.add("refused-f32-e4m3", dict(q_dtype="f32", kv_dtype="e4m3", o_dtype="f32", seqlens_q=[3], seqlens_k=[9],
                                       descale="one", tags=["refused"]))
    table.add("refused-f32-e5m2", dict(q_dtype="f32", kv_dtype="e5m2", o_dtype="f32", seqlens_q=[3], seqlens_k=[9],
                                       tags=["refused"]))
    table.add("refused-k-v-types", dict(q_dtype="bf16", kv_dtype="bf16", v_dtype="e4m3", o_dtype="bf16", seqlens_q=[3],
                                        seqlens_k=[9], tags=["refused"]))
    return table


# ---- what a GPU's kernel takes ------------------------------------------------------------------------------------------

GPU_VALUES = {
    "q_dtype": ["f16", "bf16"], "kv_dtype": ["f16", "bf16"], "layout_k": ["dense", "ragged"], "page_size": ["none"],
    "table_tail": ["none"], "bias": ["none"], "bias_broadcast": ["none"], "splits": ["auto", "one"], "descale": ["none"],
    "head_dim": ["even<64", "64", "65-127", "128", "129-255", "256"],
    "head_dim_v": ["even<64", "64", "65-127", "128", "129-255", "256"]}
GPU_ILLEGAL = [{"axis": "q_dtype", "values": [q], "with": "kv_dtype", "are": [kv]} for q, kv in (("f16", "bf16"), ("bf16", "f16"))]


def forward_gpu():
    table = Table("forward_gpu", "gpu")

    def add(label, case):
        table.add(label, dict(case, tags=["gpu"]))

    dims = {name: [dim for dim in values if dim % 8 == 0] for name, values in DIMS.items()}
    pairs = cover_pairs(20260103, AXES["axes"] | GPU_VALUES, AXES["illegal"] + GPU_ILLEGAL)
    for n, row in enumerate(pairs):
        add(f"pair-{n:03d}", concrete(row, f"gpu-pair-{n:03d}", dims))

    # Lengths on and beside the edges of tiles: of 64 to 192 rows and of 64 to 192 keys in steps of 16.
    types = itertools.cycle(["bf16", "f16"])
    masks = itertools.cycle([{}, dict(causal=True), dict(window_left=100, window_right=0), dict(window_left=37, window_right=50),
                             dict(attention_chunk=96), dict(causal=True, leftpad_k=[70])])
    rows = (1, 63, 65, 127, 129, 191, 193, 255, 257, 385)
    keys = (15, 17, 79, 81, 97, 113, 127, 129, 175, 177, 191, 193, 257, 385, 513)
    n = 0
    for dim, dim_v in ((64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (64, 256), (256, 64)):
        for m in range(9):
            dtype, seqlen_k, mask = next(types), keys[(n + 4 * m) % len(keys)], dict(next(masks))
            if "leftpad_k" in mask:
                mask["leftpad_k"] = [min(seqlen_k, *mask["leftpad_k"])]
            add(f"tile-{dim}-{dim_v}-{m}", dict(
                q_dtype=dtype, kv_dtype=dtype, o_dtype=dtype, seqlens_q=[rows[(n + m) % len(rows)]], seqlens_k=[seqlen_k],
                num_heads_q=2, num_heads_kv=1, head_dim=dim, head_dim_v=dim_v, **mask))
        n += 1

    # More tiles than multiprocessors, long sequences beside short and empty ones.
    bf16 = dict(q_dtype="bf16", kv_dtype="bf16", o_dtype="bf16", head_dim=64, head_dim_v=64)
    for mask in ({}, dict(causal=True)):
        name = "causal" if mask else "full"
        add(f"many-tiles-{name}", dict(bf16, seqlens_q=[130] * 9, seqlens_k=[130] * 9, num_heads_q=24, num_heads_kv=8, **mask))
        lengths = [700, 0, 1, 300, 64, 65, 0, 129, 17, 1, 33, 200]
        add(f"tail-{name}", dict(bf16, layout_q="ragged", layout_k="ragged", seqlens_q=lengths, seqlens_k=lengths,
                                 num_heads_q=8, num_heads_kv=2, seqused_q=True, seqused_k=True, slack_q=3, slack_k=70, **mask))
        add(f"unlike-{name}", dict(bf16, layout_q="ragged", layout_k="ragged", seqlens_q=[1, 400, 3, 0, 150],
                                   seqlens_k=[900, 2, 0, 77, 600], num_heads_q=6, num_heads_kv=3, sink=True, **mask))
        add(f"long-{name}", dict(bf16, seqlens_q=[200], seqlens_k=[4096], num_heads_q=2, num_heads_kv=1, **mask))
    return table


# ---- append_kv --------------------------------------------------------------------------------------------------------

def append_kv():
    table = Table("append_kv", "append")
    rng = random.Random(7)
    pairs = [("f32", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("bf16", "e4m3"), ("f16", "e5m2"), ("f32", "e4m3"),
             ("f32", "e5m2"), ("f32", "bf16"), ("f32", "f16"), ("bf16", "e5m2")]
    layouts = ["dense", "page_table", "page_indices", "slots"]
    strides = itertools.cycle(["packed", "head_major", "padded", "shifted", "sliced"])
    n = 0
    for new, cache in pairs:
        for layout in layouts:
            for ragged in (False, True):
                after_new = [3, 1, 4] if ragged else [2, 2, 2]
                before = [rng.choice([0, 5, 15, 16, 31]) for _ in after_new]
                rotary = (0, 16, 32, 8)[n % 4]
                dim = 32 if n % 3 else 40
                case = dict(op="append_kv", new_dtype=new, kv_dtype=cache, num_heads_q=4, num_heads_kv=2, head_dim=dim,
                            head_dim_v=(24, 40)[n % 2], seqlens_q=after_new,
                            seqlens_k=[b + a for b, a in zip(before, after_new)], seqlens_new=after_new,
                            new_tokens="cu" if ragged else "number", seqused_k=True, rotary_dim=rotary,
                            interleaved=n % 2 == 1, rotary_f32=new == "f32" or n % 3 != 1, strides_q=next(strides),
                            strides_k=next(strides), strides_v=next(strides), strides_o=next(strides),
                            values="large" if n % 2 else "random", slack_k=3)
                if rotary and n % 3 == 0:
                    case["positions"] = True
                if rotary and n % 2 == 0:
                    case["rotate_q"] = ("in_place", "out")[n // 2 % 2]
                if cache in EIGHT:
                    case["descale"] = ("none", "one", "heads", "batch_heads")[n % 4]
                if layout != "dense":
                    case["layout_k"] = "page_table" if layout == "slots" else layout
                    case["page_size"] = (16, 1, 5)[n % 3]
                    case["slot_mapping"] = layout == "slots"
                    case["skip_slots"] = layout == "slots" and n % 2 == 0
                table.add(f"{new}-{cache}-{layout}{'-ragged' if ragged else ''}", case)
                n += 1
    one = dict(op="append_kv", new_dtype="bf16", kv_dtype="bf16", num_heads_q=8, num_heads_kv=2, head_dim=64, head_dim_v=64,
               seqused_k=True, new_tokens="number")
    table.add("nothing", dict(one, seqlens_q=[0, 0], seqlens_k=[3, 5], seqlens_new=[0, 0], slack_k=1))
    table.add("no-batch", dict(one, seqlens_q=[], seqlens_k=[], seqlens_new=[], slack_k=4))
    table.add("full-cache", dict(one, seqlens_q=[3], seqlens_k=[3], seqlens_new=[3]))
    table.add("empty-sequences", dict(one, new_tokens="cu", seqlens_q=[0, 2, 0], seqlens_k=[0, 9, 4], seqlens_new=[0, 2, 0],
                                      slack_k=2))
    table.add("rotary-all", dict(one, seqlens_q=[5], seqlens_k=[133], seqlens_new=[5], rotary_dim=64, rotate_q="out"))
    table.add("rotary-two", dict(one, seqlens_q=[5], seqlens_k=[133], seqlens_new=[5], rotary_dim=2, interleaved=True,
                                 rotate_q="in_place"))
    table.add("dims", dict(one, seqlens_q=[2], seqlens_k=[9], seqlens_new=[2], head_dim=1, head_dim_v=513 - 1))
    rows = dict(one, seqlens_q=[3, 3], seqlens_k=[20, 9], seqlens_new=[3, 3], slack_k=2)
    for new, cache in [("f16", "e4m3"), ("bf16", "f16"), ("f16", "bf16"), ("bf16", "f32"), ("f16", "f32")]:
        table.add(f"{new}-{cache}-copy", dict(rows, new_dtype=new, kv_dtype=cache))
        table.add(f"{new}-{cache}-rotary", dict(rows, new_dtype=new, kv_dtype=cache, rotary_dim=48, rotate_q="out"))
    for cache in ("e4m3", "e5m2"):
        table.add(f"{cache}-{cache}-copy", dict(rows, new_dtype=cache, kv_dtype=cache))
    for new, cache in [("f32", "e4m3"), ("f32", "e5m2"), ("bf16", "e4m3"), ("bf16", "e5m2"), ("f32", "f32"), ("bf16", "bf16")]:
        table.add(f"special-{new}-{cache}", dict(rows, new_dtype=new, kv_dtype=cache, values="special",
                                                 descale="heads" if cache in EIGHT else "none"))
        table.add(f"special-rotary-{new}-{cache}", dict(rows, new_dtype=new, kv_dtype=cache, values="special", rotary_dim=32,
                                                        rotary_f32=True))
    return table


# ---- combine ----------------------------------------------------------------------------------------------------------

def combine():
    table = Table("combine", "combine")
    n = 0
    for splits in (1, 2, 3, 16, 17, 128):
        for partial, out in (("f32", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("f32", "bf16"), ("bf16", "f32"), ("f32", "f16")):
            empty = ("", "some", "plus_inf")[n % 3]
            table.add(f"{splits}-{partial}-{out}", dict(
                op="combine", num_splits=splits, q_dtype=partial, o_dtype=out, num_heads_q=(1, 3, 5)[n % 3],
                head_dim_v=(1, 33, 64, 80, 128)[n % 5], layout_q=("dense", "ragged")[n % 2],
                seqlens_q=[2, 2, 2] if n % 2 == 0 else [1, 0, 6], sink=n % 4 < 2, lse=n % 5 != 3, empty_partials=empty,
                strides_q=("packed", "padded", "head_major", "shifted")[n % 4],
                strides_o=("head_major", "packed", "sliced", "padded", "shifted")[n % 5],
                strides_lse=("packed", "padded")[n % 2]))
            n += 1
    one = dict(op="combine", q_dtype="f32", o_dtype="f32", num_heads_q=3, head_dim_v=32, seqlens_q=[4])
    table.add("all-empty", dict(one, num_splits=4, empty_partials="all"))
    table.add("all-empty-sink", dict(one, num_splits=4, empty_partials="all", sink=True))
    table.add("1024", dict(one, num_splits=1024, empty_partials="some"))
    table.add("no-rows", dict(one, num_splits=3, seqlens_q=[0]))
    table.add("no-batch", dict(one, num_splits=3, seqlens_q=[]))
    table.add("wide", dict(one, num_splits=5, head_dim_v=512))
    return table


if __name__ == "__main__":
    for family in (forward_pairs, forward_named, forward_gpu, append_kv, combine):
        family().write()
