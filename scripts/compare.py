"""The other side of scripts/compare-python: the lab's tensor groups with NumPy, SciPy and PyTorch.

The cases, sizes and units are those of `millrace bench tensor`, so that rows of both can stand side by side.
"""

import json
import os
import sys
import time

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
except ImportError:
    torch = None

BUDGET = 0.5  # seconds for every case
ELEMENTS = 16 << 20


def median(work):
    """Median seconds of `work`, after two runs that are not counted."""
    work()
    work()
    samples = []
    end = time.perf_counter() + BUDGET
    while time.perf_counter() < end or len(samples) < 5:
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    samples.sort()
    return samples[len(samples) // 2]


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
        yield group, f"{library}/{case}", "GB/s", size / median(lambda: plain(x, y, out))
        if torch is not None:
            tx, ty, to = torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(out)
            yield group, f"torch/{case}", "GB/s", size / median(lambda: tensor(tx, ty, to))


def products():
    for n in (256, 512, 1024, 2048):
        a, b = arrays(n * n).reshape(n, n), arrays(n * n, 2).reshape(n, n)
        out, case = np.empty_like(a), str(n)
        work = 2 * n**3 / 1e9
        yield "matmul_all_threads", f"numpy/{case}", "GFLOP/s", work / median(lambda: np.matmul(a, b, out=out))
        if torch is not None:
            ta, tb, to = torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(out)
            yield "matmul_all_threads", f"torch/{case}", "GFLOP/s", work / median(lambda: torch.matmul(ta, tb, out=to))


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


def sparse():
    rows = 1_000_000
    for case, matrix in matrices(rows):
        x = arrays(rows, 6)
        moved = (8 * matrix.nnz + 4 * (rows + 1) + 8 * rows) / 1e9
        yield "sparse_product", f"scipy/{case}", "GB/s", moved / median(lambda: matrix @ x)
        if torch is not None:
            held = torch.sparse_csr_tensor(torch.from_numpy(matrix.indptr.astype(np.int32)),
                                           torch.from_numpy(matrix.indices.astype(np.int32)),
                                           torch.from_numpy(matrix.data), size=matrix.shape)
            tx = torch.from_numpy(x)
            yield "sparse_product", f"torch/{case}", "GB/s", moved / median(lambda: held @ tx)
    n, entries = 10_000, 100_000
    random = np.random.default_rng(4)
    coo = scipy.sparse.coo_matrix((arrays(entries), (random.integers(0, n, entries), random.integers(0, n, entries))),
                                  shape=(n, n))
    yield "sparse_convert", "scipy/coo-csr", "us", 1e6 * median(lambda: coo.tocsr())


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
        yield "fft", f"scipy/{case}", "us", 1e6 * median(lambda: plain(x, axes=over, workers=THREADS))
        if torch is not None:
            tx, tensor = torch.from_numpy(x), torch.fft.rfftn if real else torch.fft.fftn
            yield "fft", f"torch/{case}", "us", 1e6 * median(lambda: tensor(tx, dim=over))


def recurrent():
    if torch is None:
        return
    steps, features, hidden = 64, 128, 256
    for cell, kind in (("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU)):
        for form, layers in (("", 1), ("-2-layers-both", 2)):
            network = kind(features, hidden, num_layers=layers, bidirectional=layers == 2, batch_first=True).eval()
            for batch in (4, 32):
                x = torch.from_numpy(arrays(batch * steps * features).reshape(batch, steps, features))
                with torch.no_grad():
                    yield "rnn", f"torch/{cell}{form}-batch-{batch}", "us", 1e6 * median(lambda: network(x))


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
            work = lambda: torch.nn.functional.conv2d(x, weight, None, stride, kernel // 2, 1, groups)
            with torch.no_grad():
                yield "conv", f"torch/{name}-batch-{batch}", "us", 1e6 * median(work)


def eight_bits():
    if torch is None:
        return
    for n in (256, 512, 1024):
        x, weight = (torch.from_numpy(arrays(n * n, seed).reshape(n, n)) for seed in (1, 2))
        x = torch.quantize_per_tensor(x, 1 / 127, 128, torch.quint8)
        weight = torch.quantize_per_tensor(weight, 1 / 127, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, None)
        work = lambda: torch.ops.quantized.linear(x, packed, 0.5, 128)
        yield "int8", f"torch/{n}", "GOP/s", 2 * n**3 / 1e9 / median(work)


def measure(group, path):
    rows = {"matmul_all_threads": products, "sparse": sparse, "fft": transforms, "rnn": recurrent, "conv": convolutions,
            "int8": eight_bits}.get(group)
    rows = list(rows() if rows else elementwise(group))
    with open(path, "w") as file:
        json.dump([{"group": g, "id": i, "unit": u, "p50": v} for g, i, u, v in rows], file)


def table(home, path):
    """One line for every case: the best of all rounds of each side, and ours against the fastest."""
    found = {}
    for name in sorted(os.listdir(home)):
        if name.startswith(("ours-", "theirs-")) and name.endswith(".json"):
            content = json.load(open(os.path.join(home, name)))
            for row in content["rows"] if isinstance(content, dict) else content:
                side, _, case = row["id"].partition("/")
                if row["p50"] is None:
                    continue
                less = row["unit"] in ("us", "ns")
                key = (row["group"], case, row["unit"])
                sides = found.setdefault(key, {})
                best = min if less else max
                sides[side] = best(sides.get(side, row["p50"]), row["p50"])
    titles = ["millrace", "numpy", "scipy", "torch"]
    lines = ["| group | case | unit | " + " | ".join(titles) + " | against the fastest |", "|---" * (len(titles) + 4) + "|"]
    for (group, case, unit), sides in found.items():
        others = [value for side, value in sides.items() if side in titles[1:]]
        if "millrace" not in sides or not others:
            continue
        ours = sides["millrace"]
        factor = min(others) / ours if unit in ("us", "ns") else ours / max(others)
        cells = [f"{sides[side]:.4g}" if side in sides else "" for side in titles]
        lines.append(f"| {group} | {case} | {unit} | " + " | ".join(cells) + f" | {factor:.2f} × |")
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        measure(*sys.argv[2:])
    else:
        table(*sys.argv[2:])
