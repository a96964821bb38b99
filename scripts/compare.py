"""The other side of scripts/compare-python: the lab's tensor groups with NumPy, SciPy and PyTorch.

The cases, sizes, units and turns are those of `millrace bench tensor`, so that rows of both can stand side by side.
"""

import json
import os
import sys
import time
import warnings
from contextlib import nullcontext
from functools import partial
from operator import matmul
from statistics import median

THREADS = len(os.sched_getaffinity(0))  # as many as ours, also where a process may not use all cores
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, str(THREADS))

import numpy as np
import scipy.fft
import scipy.sparse
import scipy.special

try:
    import torch

    torch.set_num_threads(THREADS)
    warnings.filterwarnings("ignore", message=".*[Ss]parse.*")  # that they are new, and are not checked
except ImportError:
    torch = None

ELEMENTS = 16 << 20
# Turns of every case and their seconds, as in the lab: what is over soon has more of them, which are shorter.
TURNS = 8, 0.06
SHORT_TURNS = 24, 0.02
IN_SHORT_TURNS = "matmul_all_threads", "reduce"


def turn(work, seconds):
    """Seconds that each run of `work` takes, after a quarter of the time in which nothing is counted."""
    end = time.perf_counter() + seconds / 4
    while time.perf_counter() < end:
        work()
    samples = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return samples


def arrays(count, seed=1):
    return np.random.default_rng(seed).random(count, dtype=np.float32) * 2 - 1


def elementwise(group):
    cases = {
        "unary": {"relu": (2, lambda x, y, o: np.maximum(x, 0, out=o), lambda x, y, o: torch.clamp(x, min=0, out=o)),
                  "neg": (2, lambda x, y, o: np.negative(x, out=o), lambda x, y, o: torch.neg(x, out=o)),
                  "sqrt": (2, lambda x, y, o: np.sqrt(y, out=o), lambda x, y, o: torch.sqrt(y, out=o))},
        "functions": {"exp": (2, lambda x, y, o: np.exp(x, out=o), lambda x, y, o: torch.exp(x, out=o)),
                      "tanh": (2, lambda x, y, o: np.tanh(x, out=o), lambda x, y, o: torch.tanh(x, out=o)),
                      "sigmoid": (2, lambda x, y, o: scipy.special.expit(x, out=o),
                                  lambda x, y, o: torch.sigmoid(x, out=o))},
        "binary": {"add": (3, lambda x, y, o: np.add(x, y, out=o), lambda x, y, o: torch.add(x, y, out=o)),
                   "mul": (3, lambda x, y, o: np.multiply(x, y, out=o), lambda x, y, o: torch.mul(x, y, out=o))},
        "reduce": {"sum": (1, lambda x, y, o: x.sum(), lambda x, y, o: x.sum()),
                   "max": (1, lambda x, y, o: x.max(), lambda x, y, o: x.max())},
    }[group]
    elements = 1 << 20 if group == "functions" else ELEMENTS
    x, y = arrays(elements), np.abs(arrays(elements, 2))
    out = np.empty_like(x)
    for case, (touched, plain, tensor) in cases.items():
        size = 4 * elements * touched / 1e9
        library = "scipy" if case == "sigmoid" else "numpy"
        yield f"{library}/{case}", "GB/s", size, partial(plain, x, y, out)
        if torch is not None:
            tx, ty, to = torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(out)
            yield f"torch/{case}", "GB/s", size, partial(tensor, tx, ty, to)


def products():
    for n in (256, 512, 1024, 2048):
        a, b = arrays(n * n).reshape(n, n), arrays(n * n, 2).reshape(n, n)
        out, case = np.empty_like(a), str(n)
        work = 2 * n**3 / 1e9
        yield f"numpy/{case}", "GFLOP/s", work, partial(np.matmul, a, b, out=out)
        if torch is not None:
            ta, tb, to = torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(out)
            yield f"torch/{case}", "GFLOP/s", work, partial(torch.matmul, ta, tb, out=to)


def matrices(rows, per_row=10):
    random = np.random.default_rng(3)
    banded = np.minimum(np.maximum(np.arange(rows) - per_row // 2, 0), rows - per_row)
    each = np.repeat(np.arange(rows), per_row)
    columns = {
        "banded": (each, (banded[:, None] + np.arange(per_row)).ravel()),
        "random": (each, random.integers(0, rows, rows * per_row)),
        "power-law": (np.minimum((rows ** random.random(rows * per_row)).astype(np.int64) - 1, rows - 1),
                      random.integers(0, rows, rows * per_row)),
    }
    for case, (row, column) in columns.items():
        values = arrays(rows * per_row, 5)
        yield case, scipy.sparse.coo_matrix((values, (row, column)), shape=(rows, rows)).tocsr().astype(np.float32)


def sparse_products():
    rows = 1_000_000
    for case, matrix in matrices(rows):
        x = arrays(rows, 6)
        moved = (8 * matrix.nnz + 4 * (rows + 1) + 8 * rows) / 1e9
        yield f"scipy/{case}", "GB/s", moved, partial(matmul, matrix, x)
        if torch is not None:
            held = torch.sparse_csr_tensor(torch.from_numpy(matrix.indptr.astype(np.int32)),
                                           torch.from_numpy(matrix.indices.astype(np.int32)),
                                           torch.from_numpy(matrix.data), size=matrix.shape)
            tx = torch.from_numpy(x)
            yield f"torch/{case}", "GB/s", moved, partial(matmul, held, tx)


def conversions():
    n, entries = 10_000, 100_000
    random = np.random.default_rng(4)
    coo = scipy.sparse.coo_matrix((arrays(entries), (random.integers(0, n, entries), random.integers(0, n, entries))),
                                  shape=(n, n))
    yield "scipy/coo-csr", "us", None, coo.tocsr


def transforms():
    lines = [(f"1d-{1 << log}", (1 << log,), 1) for log in range(6, 21, 2)]
    lines += [("1d-1000", (1000,), 1), ("1d-10007", (10_007,), 1)]
    lines += [(f"real-{1 << log}", (1 << log,), 1) for log in (10, 16, 20)]
    lines += [("batch-16384x64", (16_384, 64), 1), ("batch-1024x1024", (1024, 1024), 1), ("batch-16x65536", (16, 65_536), 1)]
    lines += [("2d-1024", (1024, 1024), 2), ("3d-128", (128, 128, 128), 3)]
    for case, shape, axes in lines:
        real = case.startswith("real")
        x = arrays(int(np.prod(shape))).reshape(shape)
        x = x if real else (x + 1j * arrays(x.size, 2).reshape(shape)).astype(np.complex64)
        over = tuple(range(len(shape) - axes, len(shape)))
        plain = scipy.fft.rfftn if real else scipy.fft.fftn
        yield f"scipy/{case}", "us", None, partial(plain, x, axes=over, workers=THREADS)
        if torch is not None:
            tx, tensor = torch.from_numpy(x), torch.fft.rfftn if real else torch.fft.fftn
            yield f"torch/{case}", "us", None, partial(tensor, tx, dim=over)


def recurrent():
    if torch is None:
        return
    steps, features, hidden = 64, 128, 256
    for cell, kind in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
        for form, layers in (("", 1), ("-2-layers-both", 2)):
            network = kind(features, hidden, num_layers=layers, bidirectional=layers == 2, batch_first=True).eval()
            for batch in (4, 32):
                x = torch.from_numpy(arrays(batch * steps * features).reshape(batch, steps, features))
                yield f"torch/{cell}{form}-batch-{batch}", "us", None, partial(network, x)


def convolutions():
    if torch is None:
        return
    layers = [(64, 64, 1, 28, 3, 1), (3, 64, 1, 224, 7, 2), (128, 128, 128, 56, 3, 1), (256, 256, 1, 28, 1, 1)]
    for channels, filters, groups, side, kernel, stride in layers:
        name = f"{channels}-{filters}" if groups == 1 else f"depthwise-{channels}"
        name += f"-{side}-k{kernel}" + (f"-s{stride}" if stride > 1 else "")
        weight = torch.from_numpy(arrays(filters * channels // groups * kernel**2, 2).reshape(filters, -1, kernel, kernel))
        for batch in (1, 8):
            x = torch.from_numpy(arrays(batch * channels * side**2).reshape(batch, channels, side, side))
            work = partial(torch.nn.functional.conv2d, x, weight, None, stride, kernel // 2, 1, groups)
            yield f"torch/{name}-batch-{batch}", "us", None, work


def eight_bits():
    if torch is None:
        return
    for n in (256, 512, 1024):
        x, weight = (torch.from_numpy(arrays(n * n, seed).reshape(n, n)) for seed in (1, 2))
        x = torch.quantize_per_tensor(x, 1 / 127, 128, torch.quint8)
        weight = torch.quantize_per_tensor(weight, 1 / 127, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, None)
        yield f"torch/{n}", "GOP/s", 2 * n**3 / 1e9, partial(torch.ops.quantized.linear, x, packed, 0.5, 128)


def measure(group, path):
    """Writes a row for every case of a group, which take turns. A case is its name, a unit, what one run of it does, and the run.
    It is made anew for each turn, as in the lab: memory that is used for long may become faster."""
    cases = {"matmul_all_threads": products, "sparse_product": sparse_products, "sparse_convert": conversions,
             "fft": transforms, "rnn": recurrent, "conv": convolutions, "int8": eight_bits}.get(group)
    turns, seconds = SHORT_TURNS if group in IN_SHORT_TURNS else TURNS
    samples = {}
    with nullcontext() if torch is None else torch.no_grad():
        for _ in range(turns):
            for name, unit, amount, work in cases() if cases else elementwise(group):
                samples.setdefault((name, unit, amount), []).extend(turn(work, seconds))
    rows = []
    for (name, unit, amount), of_case in samples.items():
        took = median(of_case)
        rows.append({"group": group, "id": name, "unit": unit, "p50": 1e6 * took if amount is None else amount / took})
    with open(path, "w") as file:
        json.dump(rows, file)


def table(home, path):
    """One line for every case: the median of all rounds of each side, and of ours against the fastest of the same round: what
    else the machine does may make memory twice as fast a minute later."""
    found = {}
    for name in sorted(os.listdir(home)):
        if name.startswith(("ours-", "theirs-")) and name.endswith(".json"):
            content = json.load(open(os.path.join(home, name)))
            number = name.removesuffix(".json").rpartition("-")[2]
            for row in content["rows"] if isinstance(content, dict) else content:
                side, _, case = row["id"].partition("/")
                if row["p50"] is not None:
                    sides = found.setdefault((row["group"], case, row["unit"]), {})
                    sides.setdefault(side, {})[number] = row["p50"]
    titles = ["millrace", "numpy", "scipy", "torch"]
    lines = ["| group | case | unit | " + " | ".join(titles) + " | against the fastest |", "|---" * (len(titles) + 4) + "|"]
    for (group, case, unit), sides in found.items():
        ours, less = sides.get("millrace", {}), unit in ("us", "ns")
        factors = []
        for number, value in ours.items():
            others = [of_side[number] for side, of_side in sides.items() if side in titles[1:] and number in of_side]
            if others:
                factors.append(min(others) / value if less else value / max(others))
        if not factors:
            continue
        cells = [f"{median(sides[side].values()):.4g}" if side in sides else "" for side in titles]
        lines.append(f"| {group} | {case} | {unit} | " + " | ".join(cells) + f" | {median(factors):.2f} × |")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(*sys.argv[2:])
    else:
        table(*sys.argv[2:])
