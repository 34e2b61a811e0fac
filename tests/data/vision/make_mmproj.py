#!/usr/bin/env python3
"""Build a tiny but real vision projector (mmproj GGUF) for a small text model.

    python make_mmproj.py SmolLM2-135M-Instruct.Q4_1.gguf mmproj-colors.gguf

The result is loaded by llama.cpp's libmtmd like any other projector
(llama-server --mmproj, mtmd_init_from_file, ...).  It recognises

    colour      red orange yellow green blue purple pink black white gray
    shape       circle, square, triangle, or none (a plain / noisy picture)
    background  the same ten colours

and hands the text model 25 embeddings: exactly the token embeddings of the caption

    "\\nThis image is a <C> <S>. The color of the <S'> is <C>.
     The color of the background is <B>.\\n"

with the words in <> chosen from the pixels alone (for a picture without a shape <S> is
"color" and <S'> is "image").  So the text model answers questions about the picture as
if that caption stood in its prompt.

How the picture is computed (everything is ordinary ViT arithmetic, projector type
"janus_pro": fixed input size, aspect ratio kept, gray 127 bars, no marker tokens):

    patch conv    60x60 px, 5x5 patches of 12x12 px -> the 15 lowest 2-D DCT coefficients of
                  R, G and B (fixed, not learned)
    position      one-hot patch number + one large constant (see LayerNorm below)
    block 0 FFN   learned MLP, shared by all patches: 45 -> H1 -> E numbers per patch
    block 1 attn  25 heads; head h looks at patch h only, so that every token holds all
                  25*E numbers; the output matrix is the first layer of the classifier
    block 1 FFN   learned MLP -> 24 scores (10 colours, 4 shapes, 10 background colours)
    projector     layer 1: clip every score to 0..1, and let it through only at the token numbers
                  where that kind of word belongs; layer 2: the text model's embedding rows

LayerNorm would destroy the scale of the features.  Two channels hold +K and -K with K far
above everything else, so that the standard deviation is constant and LayerNorm is the
identity up to ~1e-4; one channel is always 0 and is used to undo the mean subtraction.

Only ~92,000 numbers are learned, by plain numpy Adam on synthetic pictures that this file
draws (4 to 6 minutes on one core, 0.5 GB).  They do not depend on the text model; they are
cached in --core (default: vision_core.npz beside this file) and reused if present, so
with the .npz the build is bit-for-bit reproducible and takes a second or two.

Needs numpy and gguf.  Nothing is downloaded.
"""

import argparse
import os
import sys
import time
from pathlib import Path

for _v in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_v, "1")  # small matrices: more threads only fight each other

import numpy as np  # noqa: E402

F32 = np.float32

# ----------------------------------------------------------------------------- what is recognised

# class -> ranges of hue (degrees), saturation and value it is drawn from
COLORS = {
    "red": ((-10, 8), (0.65, 1), (0.55, 1)),
    "orange": ((24, 40), (0.75, 1), (0.85, 1)),
    "yellow": ((50, 63), (0.60, 1), (0.80, 1)),
    "green": ((85, 150), (0.50, 1), (0.35, 1)),
    "blue": ((205, 246), (0.60, 1), (0.50, 1)),
    "purple": ((268, 302), (0.45, 1), (0.35, 0.85)),
    "pink": ((322, 352), (0.22, 0.5), (0.92, 1)),
    "black": ((0, 360), (0, 1), (0, 0.13)),
    "white": ((0, 360), (0, 0.06), (0.94, 1)),
    "gray": ((0, 360), (0, 0.10), (0.35, 0.72)),
}
NAMES = list(COLORS)
NC = len(NAMES)
SHAPES = ["none", "circle", "square", "triangle"]
NS = len(SHAPES)
N_OUT = NC + NS + NC  # colour | shape | background

# the caption; C, S, T, B are filled from the picture, the rest is constant
SLOTS = [
    "\n",
    "This",
    " image",
    " is",
    " a",
    "<C>",
    "<S>",
    ".",
    " The",
    " color",
    " of",
    " the",
    "<T>",
    " is",
    "<C>",
    ".",
    " The",
    " color",
    " of",
    " the",
    " background",
    " is",
    "<B>",
    ".",
    "\n",
]
COLOR_WORDS = [" " + n for n in NAMES]
S_WORDS = [" color", " circle", " square", " triangle"]  # "This image is a red ..."
T_WORDS = [" image", " circle", " square", " triangle"]  # "The color of the ..."

# ----------------------------------------------------------------------------- geometry

PATCH = 12
GRID = 5
SIZE = PATCH * GRID  # 60
T = GRID * GRID  # 25 patches = 25 image tokens
assert len(SLOTS) == T

UV = [(u, v) for u in range(5) for v in range(5 - u)]  # DCT frequencies kept (u + v <= 4)
NF = 3 * len(UV)  # 45 numbers per patch
H1, E, H3 = 160, 16, 192  # widths of the learned part


def dct_filters():
    """(15, 12, 12) low-pass DCT filters, scaled so that outputs are about 1."""
    n = np.arange(PATCH) + 0.5
    out = []
    for u, v in UV:
        k = np.outer(np.cos(np.pi * u * n / PATCH), np.cos(np.pi * v * n / PATCH))
        k /= np.sqrt((k**2).sum())
        out.append(k / PATCH * (1 if (u, v) == (0, 0) else 2.5))
    return np.array(out, F32)


DCT = dct_filters()


def features(img):
    """(B, 60, 60, 3) pixels in -1..1 -> (B, 25, 45); the same numbers as the patch conv."""
    b = img.shape[0]
    x = img.reshape(b, GRID, PATCH, GRID, PATCH, 3).transpose(0, 1, 3, 5, 2, 4)
    x = x.reshape(-1, PATCH * PATCH) @ DCT.reshape(len(UV), -1).T
    return x.reshape(b, T, NF)


# ----------------------------------------------------------------------------- synthetic pictures

_LO = np.array([[COLORS[n][k][0] for k in range(3)] for n in NAMES], F32)
_HI = np.array([[COLORS[n][k][1] for k in range(3)] for n in NAMES], F32)
_YY, _XX = np.meshgrid(
    np.arange(SIZE, dtype=F32) + F32(0.5), np.arange(SIZE, dtype=F32) + F32(0.5), indexing="ij"
)
_YY, _XX = _YY[None], _XX[None]


def _sample_color(rng, cls):
    h, s, v = (_LO[cls] + (_HI[cls] - _LO[cls]) * rng.random((len(cls), 3), dtype=F32)).T
    h = (h % 360) / 60
    i = np.floor(h).astype(int) % 6
    f = h - np.floor(h)
    p, q, t = v * (1 - s), v * (1 - s * f), v * (1 - s * (1 - f))
    rgb = [np.choose(i, c) for c in ([v, q, p, p, t, v], [t, v, v, q, p, p], [p, p, t, v, v, q])]
    return (np.stack(rgb, -1) * 255).astype(F32)


def _signed_distance(kind, x, y, r, ang):
    """Distance in px from the edge of a circle / square / triangle of radius r (inside < 0)."""
    c, s = np.cos(ang), np.sin(ang)
    x, y = c * x + s * y, -s * x + c * y
    k = F32(np.sqrt(3) / 2)
    circle = np.sqrt(x * x + y * y) - r
    square = np.maximum(np.abs(x), np.abs(y)) - r * F32(0.886)
    tri = np.maximum(y, np.maximum(k * x - y / 2, -k * x - y / 2)) - r * F32(0.6)
    return np.where(kind == 1, circle, np.where(kind == 2, square, tri))


def draw_batch(rng, n):
    """n pictures (n, 60, 60, 3) in -1..1 as libmtmd's preprocessing would deliver them, with the
    classes of colour, shape and background."""

    def rnd(lo=0.0, hi=1.0):
        return F32(lo) + F32(hi - lo) * rng.random(n, dtype=F32)

    def px(a):  # per-picture number -> broadcast over pixels
        return np.asarray(a, F32)[:, None, None]

    def rgb(a):  # per-picture colour -> broadcast over pixels
        return a[:, None, None]

    def paint(img, mask, col):
        return img + mask[..., None] * (col - img)

    kind = rng.choice(NS, n, p=[0.4, 0.2, 0.2, 0.2])
    shaped = kind > 0
    c1 = rng.integers(0, NC, n)
    c2 = (c1 + rng.integers(1, NC, n)) % NC
    fg, fg2, bg = _sample_color(rng, c1), _sample_color(rng, c1), _sample_color(rng, c2)
    near = shaped & (np.abs(fg - bg).sum(1) < 110)  # hardly visible: use black / white instead
    c2 = np.where(near, np.where(fg.mean(1) > 128, NAMES.index("black"), NAMES.index("white")), c2)
    bg = np.where(near[:, None], _sample_color(rng, c2), bg)

    # libmtmd keeps the aspect ratio: the content is centred between gray bars
    half = F32(SIZE / 2)
    aspect = np.where(rnd() < 0.5, F32(1), rnd(1, 2.2))
    wide = rnd() < 0.5
    ax = np.where(wide, half, half / aspect)
    ay = np.where(wide, half / aspect, half)
    m = np.minimum(ax, ay)

    # colour of the subject (or of the whole picture): plain, or a gradient within its class
    th = rnd(0, 2 * np.pi)
    ramp = np.clip(
        ((_XX - half) * px(np.cos(th)) + (_YY - half) * px(np.sin(th))) / SIZE + F32(0.5), 0, 1
    )
    ramp = ramp * px(rnd() < 0.35)
    subject = rgb(fg) + ramp[..., None] * rgb(fg2 - fg)

    # shapes
    r = m * rnd(0.44, 0.94)
    ext = np.where(kind == 3, F32(1.2), F32(1)) * r
    cx = half + rnd(-1, 1) * np.maximum(ax - ext * F32(0.95), 0)
    cy = half + rnd(-1, 1) * np.maximum(ay - ext * F32(0.95), 0)
    sd = _signed_distance(
        px(kind), _XX - px(cx), _YY - px(cy), px(r), px(rnd(-1, 1) * F32(np.deg2rad(15)))
    )
    inside = np.clip(F32(0.5) - sd / px(rnd(0.7, 2.5)), 0, 1)
    img = np.where(px(shaped)[..., None] > 0, paint(rgb(bg), inside, subject), subject)

    # pictures without a shape may have a minority colour: an edge strip, stripes, or blobs
    mode = np.where(shaped, F32(9), rnd())
    along = np.where(px(rnd() < 0.5) > 0, (_XX - half) / px(ax), (_YY - half) / px(ay)) / 2 + F32(
        0.5
    )
    along = np.where(px(rnd() < 0.5) > 0, 1 - along, along)
    strip = (along < px(rnd(0.08, 0.32))) & (px(mode) < 0.15)
    stripes = ((along * px(rng.integers(2, 6, n))) % 1 < px(rnd(0.15, 0.32))) & (
        px(np.abs(mode - F32(0.22))) < 0.07
    )
    img = paint(img, (strip | stripes).astype(F32), rgb(bg))
    same = rnd() < 0.6  # all blobs of one colour, or each of its own
    for i in range(6):
        bx, by = half + rnd(-1, 1) * ax, half + rnd(-1, 1) * ay
        blob = ((_XX - px(bx)) ** 2 + (_YY - px(by)) ** 2 < px((m * rnd(0.08, 0.24)) ** 2)) & (
            px(np.abs(mode - F32(0.85)) + (i > 2) * rnd(0, 0.15)) < 0.1
        )
        cls = np.where(same, c2, rng.integers(0, NC, n))
        img = paint(img, blob.astype(F32), rgb(_sample_color(rng, cls)))

    # noise: per pixel and in 4x4 blocks (what an upscaled or JPEG-compressed picture looks like)
    fine = np.where(rnd() < 0.5, F32(0), rnd(0, 32))
    coarse = np.where(rnd() < 0.6, F32(0), rnd(0, 22))
    img = img + rng.standard_normal((n, SIZE, SIZE, 3), dtype=F32) * px(fine)[..., None]
    low = rng.standard_normal((n, SIZE // 4, SIZE // 4, 3), dtype=F32)
    img = img + low.repeat(4, 1).repeat(4, 2) * px(coarse)[..., None]

    bars = (np.abs(_XX - half) > px(ax)) | (np.abs(_YY - half) > px(ay))
    img = np.where(bars[..., None], F32(127), img)
    img = np.clip(np.rint(img), 0, 255)
    return (img / F32(127.5) - 1).astype(F32), c1, kind, np.where(shaped, c2, c1)


# ----------------------------------------------------------------------------- the learned part


def act(z):
    """ggml's quick GELU and its derivative."""
    s = 1 / (1 + np.exp(np.clip(F32(-1.702) * z, -60, 60)))
    return z * s, s + F32(1.702) * z * s * (1 - s)


def core_forward(p, x, grad=False):
    """x (B, 25, 45) -> scores (B, 24)."""
    b = len(x)
    h, dh = act(x.reshape(b * T, NF) @ p["W1"] + p["b1"])
    g = (h @ p["W2"] + p["b2"]).reshape(b, T * E)
    u, du = act(g @ p["W3"] + p["b3"])
    s = u @ p["W4"] + p["b4"]
    return (s, h, dh, g, u, du) if grad else s


def _flips():
    """The 8 symmetries of the square, applied to feature vectors: (index, sign) pairs."""
    k, at = len(UV), {uv: i for i, uv in enumerate(UV)}
    out = []
    for fx in (0, 1):
        for fy in (0, 1):
            for tr in (0, 1):
                ix, sg = np.zeros((T, 3, k), int), np.ones((T, 3, k), F32)
                for r in range(GRID):
                    for c in range(GRID):
                        for i, (u, v) in enumerate(UV):
                            r2, c2, u2, v2 = (c, r, v, u) if tr else (r, c, u, v)
                            sg[r * GRID + c, :, i] = (-1) ** (fx * v2 + fy * u2)
                            r2, c2 = (GRID - 1 - r2 if fy else r2), (GRID - 1 - c2 if fx else c2)
                            ix[r * GRID + c, :, i] = (
                                (r2 * GRID + c2) * 3 * k + np.arange(3) * k + at[u2, v2]
                            )
                out.append((ix.ravel(), sg.ravel()))
    return out


def accuracy(s, c, k, b):
    col = s[:, :NC].argmax(1) == c
    return (
        f"colour {col[k == 0].mean():.3f} (no shape) {col[k > 0].mean():.3f} (shape), "
        f"shape {(s[:, NC : NC + NS].argmax(1) == k).mean():.3f}, "
        f"background {(s[:, NC + NS :].argmax(1) == b)[k > 0].mean():.3f}"
    )


def train(n_images=140000, epochs=26, batch=128, lr=4e-3, seed=1):
    rng = np.random.default_rng(seed)
    t0 = time.time()
    x = np.empty((n_images, T, NF), np.float16)  # features only; the pictures are not kept
    c, k, b = (np.empty(n_images, int) for _ in range(3))
    for i in range(0, n_images, 200):
        img, c[i : i + 200], k[i : i + 200], b[i : i + 200] = draw_batch(rng, 200)
        x[i : i + 200] = features(img)
    print(f"drew {len(x)} pictures in {time.time() - t0:.0f} s", flush=True)
    y = np.zeros((len(x), N_OUT), F32)
    rows = np.arange(len(x))
    y[rows, c] = y[rows, NC + k] = y[rows, NC + NS + b] = 1

    def init(a, d, gain=1.0):
        return (rng.standard_normal((a, d)) * gain / np.sqrt(a)).astype(F32)

    p = {
        "W1": init(NF, H1, 1.5),
        "W2": init(H1, E),
        "W3": init(T * E, H3, 2),
        "W4": init(H3, N_OUT),
    }
    for i, d in ((1, H1), (2, E), (3, H3), (4, N_OUT)):
        p[f"b{i}"] = np.zeros(d, F32)
    m = {q: np.zeros_like(a) for q, a in p.items()}
    v = {q: np.zeros_like(a) for q, a in p.items()}
    flips, n_val = _flips(), 2000
    n_train = len(x) - n_val
    steps, step, t0 = epochs * (n_train // batch), 0, time.time()
    for epoch in range(epochs):
        order, loss = rng.permutation(n_train), 0.0
        for i in range(n_train // batch):
            idx = np.sort(order[i * batch : (i + 1) * batch])
            ix, sg = flips[rng.integers(8)]
            xb = (x[idx].astype(F32).reshape(batch, -1)[:, ix] * sg).reshape(batch, T, NF)
            s, h, dh, g, u, du = core_forward(p, xb, grad=True)
            prob = 1 / (1 + np.exp(np.clip(-s, -60, 60)))
            loss -= (np.log(np.where(y[idx] > 0, prob, 1 - prob) + 1e-7)).sum() / batch
            ds = (prob - y[idx]) / batch  # binary cross-entropy, one per class
            dz3 = (ds @ p["W4"].T) * du
            dg = (dz3 @ p["W3"].T).reshape(-1, E)
            dz1 = (dg @ p["W2"].T) * dh
            grads = {
                "W4": u.T @ ds,
                "b4": ds.sum(0),
                "W3": g.T @ dz3,
                "b3": dz3.sum(0),
                "W2": h.T @ dg,
                "b2": dg.sum(0),
                "W1": xb.reshape(-1, NF).T @ dz1,
                "b1": dz1.sum(0),
            }
            step += 1
            rate = lr * min(1, step / 300) * (0.51 + 0.49 * np.cos(np.pi * step / steps))
            for q in p:  # Adam
                m[q] = F32(0.9) * m[q] + F32(0.1) * grads[q]
                v[q] = F32(0.995) * v[q] + F32(0.005) * grads[q] ** 2
                p[q] = p[q] - (
                    F32(rate / (1 - 0.9**step))
                    * m[q]
                    / (np.sqrt(v[q] / F32(1 - 0.995**step)) + F32(1e-8))
                )
        if epoch % 4 == 3 or epoch == epochs - 1:
            s = core_forward(p, x[n_train:].astype(F32))
            print(
                f"epoch {epoch + 1:2d}/{epochs} loss {loss / (n_train // batch):.3f}; held out: "
                f"{accuracy(s, c[n_train:], k[n_train:], b[n_train:])}  [{time.time() - t0:.0f} s]",
                flush=True,
            )
    return p


# ----------------------------------------------------------------------------- assembling the ViT

BIG = F32(1000)  # the +K / -K channels that freeze LayerNorm
CH_F = 0  # 45 patch features
CH_POS = CH_F + NF  # 25 one-hot patch number
CH_ZERO = CH_POS + T  # always 0
CH_K = CH_ZERO + 1  # +K, -K
CH_PHI = CH_K + 2  # 16 outputs of block 0
CH_Z = CH_PHI + E  # 192 hidden sums, written by block 1's attention
CH_S = CH_Z + H3  # 24 scores, written by block 1's FFN
DIM = CH_S + N_OUT
DIM += -DIM % 8
EPS = 1e-6


def assemble(core, emb, scale=1.0):
    """All tensors of the GGUF, numpy (out, in) order.  emb(word) -> embedding row of the text model."""
    t = {}

    def z(*shape):
        return np.zeros(shape, F32)

    def after_norm(w):  # undo the mean subtraction: x_j - mean, and x_zero - mean = -mean
        w = w.copy()
        w[:, CH_ZERO] = -w.sum(1)
        return w

    conv = z(DIM, 3, PATCH, PATCH)
    for ch in range(3):
        for i in range(len(UV)):
            conv[CH_F + ch * len(UV) + i, ch] = DCT[i]
    t["v.patch_embd.weight"] = conv
    pos = z(T, DIM)
    pos[np.arange(T), CH_POS + np.arange(T)] = 1
    pos[:, CH_K], pos[:, CH_K + 1] = BIG, -BIG
    t["v.position_embd.weight"] = pos

    width = T * E  # 25 heads of 16
    norm = np.full(DIM, np.sqrt(2 * BIG**2 / DIM), F32)
    for il in range(2):
        b = f"v.blk.{il}."
        t[b + "ln1.weight"], t[b + "ln1.bias"] = norm, z(DIM)
        t[b + "ln2.weight"], t[b + "ln2.bias"] = norm, z(DIM)
        for n in "qkv":
            t[b + f"attn_{n}.weight"], t[b + f"attn_{n}.bias"] = z(width, DIM), z(width)
        t[b + "attn_out.weight"], t[b + "attn_out.bias"] = z(DIM, width), z(DIM)

    # block 0: attention adds nothing; FFN = the per-patch MLP
    up, down, down_b = z(H1, DIM), z(DIM, H1), z(DIM)
    up[:, CH_F : CH_F + NF] = core["W1"].T
    down[CH_PHI : CH_PHI + E] = core["W2"].T
    down_b[CH_PHI : CH_PHI + E] = core["b2"]
    t["v.blk.0.ffn_up.weight"], t["v.blk.0.ffn_up.bias"] = after_norm(up), core["b1"]
    t["v.blk.0.ffn_down.weight"], t["v.blk.0.ffn_down.bias"] = down, down_b

    # block 1: head h attends to patch h (score 16*16/sqrt(16) = 64 there, 0 elsewhere) and copies phi
    q_b, k_w, v_w, o_w, o_b = z(width), z(width, DIM), z(width, DIM), z(DIM, width), z(DIM)
    for h in range(T):
        q_b[h * E] = 16
        k_w[h * E, CH_POS + h] = 16
        v_w[h * E + np.arange(E), CH_PHI + np.arange(E)] = 1
    o_w[CH_Z : CH_Z + H3] = core["W3"].T
    o_b[CH_Z : CH_Z + H3] = core["b3"]
    t["v.blk.1.attn_q.bias"] = q_b
    t["v.blk.1.attn_k.weight"] = after_norm(k_w)
    t["v.blk.1.attn_v.weight"] = after_norm(v_w)
    t["v.blk.1.attn_out.weight"], t["v.blk.1.attn_out.bias"] = o_w, o_b
    up, down, down_b = z(H3, DIM), z(DIM, H3), z(DIM)
    up[np.arange(H3), CH_Z + np.arange(H3)] = 1
    down[CH_S : CH_S + N_OUT] = core["W4"].T
    down_b[CH_S : CH_S + N_OUT] = core["b4"]
    t["v.blk.1.ffn_up.weight"], t["v.blk.1.ffn_up.bias"] = after_norm(up), z(H3)
    t["v.blk.1.ffn_down.weight"], t["v.blk.1.ffn_down.bias"] = down, down_b

    # projector: one column per hidden unit = one multiple of an embedding row
    rows0, bias0, cols1 = [], [], []

    def unit(score, gain, slots, bias, vec):
        w = z(DIM)
        if score is not None:
            w[CH_S + score] = gain
        w[[CH_POS + i for i in slots]] = 2000 if score is not None else 8
        rows0.append(w), bias0.append(bias - (2000 if score is not None else 0)), cols1.append(vec)

    def where(mark):
        return [i for i, s in enumerate(SLOTS) if s == mark]

    # a word chosen by a score s: (act(4(s+2)) - act(4s)) / 8 = clip((s+2)/2, 0, 1), switched off by the
    # -2000 at all other tokens.  (A doubtful picture rather gets two mixed words than none.)
    for mark, first, words in (
        ("<C>", 0, COLOR_WORDS),
        ("<S>", NC, S_WORDS),
        ("<T>", NC, T_WORDS),
        ("<B>", NC + NS, COLOR_WORDS),
    ):
        for j, word in enumerate(words):
            unit(first + j, 4, where(mark), 8, emb(word) / 8)
            unit(first + j, 4, where(mark), 0, -emb(word) / 8)
    # the constant words, and a weak "some colour / some shape" where nothing was recognised
    for word in dict.fromkeys(s for s in SLOTS if s[0] != "<"):
        unit(None, 0, where(word), 0, emb(word) / 8)
    for mark, words in (
        ("<C>", COLOR_WORDS),
        ("<S>", S_WORDS),
        ("<T>", T_WORDS),
        ("<B>", COLOR_WORDS),
    ):
        unit(None, 0, where(mark), 0, 0.02 / 8 * np.mean([emb(w) for w in words], 0))
    t["mm.0.weight"], t["mm.0.bias"] = np.array(rows0, F32), np.array(bias0, F32)
    t["mm.1.weight"] = np.ascontiguousarray(np.array(cols1, F32).T * F32(scale))
    t["mm.1.bias"] = z(t["mm.1.weight"].shape[0])
    return t


def vit_forward(t, img):
    """The graph that libmtmd builds for projector type janus_pro, in float64 numpy (for the self-test)."""
    t = {n: a.astype(np.float64) for n, a in t.items()}
    b = len(img)
    x = img.astype(np.float64).reshape(b, GRID, PATCH, GRID, PATCH, 3).transpose(0, 1, 3, 5, 2, 4)
    x = (
        x.reshape(b, T, -1) @ t["v.patch_embd.weight"].reshape(DIM, -1).T
        + t["v.position_embd.weight"]
    )

    def norm(x, n):
        d = x - x.mean(-1, keepdims=True)
        return d / np.sqrt((d**2).mean(-1, keepdims=True) + EPS) * t[n + ".weight"] + t[n + ".bias"]

    def lin(x, n):
        return x @ t[n + ".weight"].T + t[n + ".bias"]

    for il in range(2):
        n = f"v.blk.{il}."
        y = norm(x, n + "ln1")
        q, k, v = (lin(y, n + "attn_" + a).reshape(b, T, T, E).transpose(0, 2, 1, 3) for a in "qkv")
        a = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(E))
        y = (a / a.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(b, T, T * E)
        x = x + lin(y, n + "attn_out")
        x = x + lin(act(lin(norm(x, n + "ln2"), n + "ffn_up"))[0], n + "ffn_down")
    return lin(act(lin(x, "mm.0"))[0], "mm.1")


# ----------------------------------------------------------------------------- GGUF in and out


class TextModel:
    """What is needed of the text model: its architecture, its vocabulary, and its embedding rows."""

    def __init__(self, path):
        from gguf import GGUFReader
        from gguf.quants import dequantize

        r = GGUFReader(path)
        self.arch = r.get_field("general.architecture").contents()
        name = r.get_field("general.name")
        self.name = name.contents() if name else self.arch
        tok = r.get_field("tokenizer.ggml.tokens")
        self.ids = {}
        for i, j in enumerate(tok.data):
            self.ids.setdefault(bytes(tok.parts[j]).decode("utf-8", "replace"), i)
        emb = next(x for x in r.tensors if x.name == "token_embd.weight")
        self.n_embd = int(emb.shape[0])
        self._emb, self._deq = emb, dequantize
        # gemma multiplies token embeddings (not image embeddings) by sqrt(n_embd)
        self.scale = float(np.sqrt(self.n_embd)) if self.arch.startswith("gemma") else 1.0

    def embedding(self, word):
        forms = [
            word.replace(" ", "\u0120").replace("\n", "\u010a"),
            word.replace(" ", "\u2581"),
            word,
        ]
        if word == "\n":
            forms.append("<0x0A>")
        for f in forms:
            if f in self.ids:
                row = self._emb.data[self.ids[f] : self.ids[f] + 1]
                return self._deq(row, self._emb.tensor_type).reshape(-1).astype(F32)
        raise SystemExit(f"the text model has no single token for {word!r}")


def write_gguf(path, tensors, model):
    from gguf import GGUFWriter

    w = GGUFWriter(path, "clip")
    w.add_type("mmproj")
    w.add_name(f"colours and shapes for {model.name}")
    w.add_description(
        "tiny synthetic vision encoder: names colour, shape and background of a picture"
    )
    w.add_file_type(0)
    w.add_bool("clip.has_vision_encoder", True)
    w.add_string("clip.projector_type", "janus_pro")
    for key, val in (
        ("image_size", SIZE),
        ("patch_size", PATCH),
        ("embedding_length", DIM),
        ("feed_forward_length", max(H1, H3)),
        ("block_count", 2),
        ("projection_dim", model.n_embd),
        ("attention.head_count", T),
        ("attention.head_dim", E),
    ):
        w.add_uint32("clip.vision." + key, val)
    w.add_float32("clip.vision.attention.layer_norm_epsilon", EPS)
    w.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    w.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    # neither clip.use_gelu nor clip.use_silu: libmtmd then uses quick GELU
    for name, a in tensors.items():
        w.add_tensor(name, np.ascontiguousarray(a, F32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def self_test(core, tensors, model, n=300):
    """The assembled ViT must say the same as the trained network, on pictures not used in training."""
    img, c, k, b = draw_batch(np.random.default_rng(12345), n)
    scores = core_forward(core, features(img))
    out = vit_forward(tensors, img) / model.scale
    wanted = {
        "<C>": (COLOR_WORDS, scores[:, :NC]),
        "<S>": (S_WORDS, scores[:, NC : NC + NS]),
        "<T>": (T_WORDS, scores[:, NC : NC + NS]),
        "<B>": (COLOR_WORDS, scores[:, NC + NS :]),
    }
    worst = 0.0
    for i, slot in enumerate(SLOTS):
        if slot in wanted:  # the same words in the same proportions
            words, sc = wanted[slot]
            rows = np.array([model.embedding(w) for w in words])
            want = np.clip(sc / 2 + 1, 0, 1) @ rows + 0.02 * rows.mean(0)
        else:
            want = model.embedding(slot)[None]
        worst = max(worst, np.abs(out[:, i] - want).max() / np.abs(want).max())
    print(
        f"self-test: the ViT is the trained network up to {worst:.1%}; fresh pictures: {accuracy(scores, c, k, b)}"
    )
    assert worst < 0.05


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("model", help="text model GGUF (SmolLM2-135M-Instruct)")
    ap.add_argument("output", help="mmproj GGUF to write")
    ap.add_argument(
        "--core", help="cache of the learned weights (default: vision_core.npz beside this file)"
    )
    ap.add_argument("--retrain", action="store_true", help="ignore an existing cache")
    a = ap.parse_args()
    core_path = Path(a.core) if a.core else Path(__file__).with_name("vision_core.npz")
    model = TextModel(a.model)
    if core_path.exists() and not a.retrain:
        with np.load(core_path) as d:
            core = {n: d[n].astype(F32) for n in d.files}
    else:
        core = train()
        np.savez(core_path, **{n: x.astype(np.float16) for n, x in core.items()})
        core = {n: x.astype(np.float16).astype(F32) for n, x in core.items()}
    tensors = assemble(core, model.embedding, model.scale)
    self_test(core, tensors, model)
    write_gguf(a.output, tensors, model)
    n = sum(x.size for x in core.values())
    print(
        f"{a.output}: {Path(a.output).stat().st_size / 1e6:.2f} MB, {T} image tokens of {model.n_embd}, "
        f"{n} learned numbers, text model {model.name} ({model.arch})"
    )


if __name__ == "__main__":
    sys.exit(main())
