#!/usr/bin/env python3
"""Trains the network of `classify` and writes its weights and its held-out images.

    python3 -m venv target/train && target/train/bin/pip install -r cells/services/classify/train/requirements.txt
    target/train/bin/python cells/services/classify/train/train.py       # some minutes of two cores

The data is the 1,797 handwritten digits of 8 x 8 pixels that scikit-learn ships (a part of the UCI data set "Optical
Recognition of Handwritten Digits"). Each is drawn enlarged to 32 x 32 pixels in two random colours, so that no single
colour channel tells the digit. A fifth, equally many of each class, is held out and never trained on. There is no
validation set and no early stop: the last weights are the ones that are kept. (With 30 epochs instead of 60, 345 of the
360 held-out images are right instead of 358.)

Files, little-endian:

    weights.bin    for each layer of LAYERS its kernel, then its bias, as 32-bit floats; kernels as (out, in, height, width)
    held_out.bin   for each image 71 bytes: class, 3 of background, 3 of foreground colour, 64 of ink from 0 to 16
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 20261120
EPOCHS = 60
BATCH = 32
RATE = 2e-3
CLASSES = 10

# Channels in, channels out, and the stride of a layer's kernels of 3 x 3. src/network.rs has the same list.
LAYERS = [(3, 16, 1), (16, 32, 1), (32, 32, 2), (32, 64, 2), (64, 32, 2)]

# What the last of them leaves of an image: channels and 4 x 4 places.
FEATURES = 32 * 4 * 4

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"


def render(ink, colours):
    """Images of 3 x 32 x 32 bytes from 8 x 8 ink and two colours; the same integers as src/render.rs."""
    at = 2 * np.arange(32) - 3
    low, part = at // 8, at % 8
    first, second = np.clip(low, 0, 7), np.clip(low + 1, 0, 7)
    ink = ink.astype(np.int32)
    rows = ink[:, first] * (8 - part)[:, None] + ink[:, second] * part[:, None]
    cover = rows[:, :, first] * (8 - part) + rows[:, :, second] * part
    ground, ink_colour = colours[:, 0, :, None, None].astype(np.int32), colours[:, 1, :, None, None].astype(np.int32)
    mixed = ground * (1024 - cover[:, None]) + ink_colour * cover[:, None]
    return ((mixed + 512) >> 10).astype(np.uint8)


def colours(random, count):
    """Pairs of colours that an eye can tell apart."""
    pairs = random.integers(0, 256, (count, 2, 3))
    while (close := np.abs(pairs[:, 0] - pairs[:, 1]).sum(axis=1) < 200).any():
        pairs[close] = random.integers(0, 256, (int(close.sum()), 2, 3))
    return pairs


def disturb(random, images):
    """Moves each image by up to two pixels and adds noise."""
    moved = np.empty(images.shape, np.float32)
    for image, out, (down, right) in zip(images, moved, random.integers(-2, 3, (len(images), 2))):
        padded = np.pad(image, ((0, 0), (2, 2), (2, 2)), mode="edge")
        out[:] = padded[:, 2 + down : 34 + down, 2 + right : 34 + right]
    return np.clip(moved + random.normal(0, 6, moved.shape), 0, 255).astype(np.float32)


def initial(random):
    weights = []
    for inputs, outputs, _ in LAYERS:
        kernel = random.normal(0, (2 / (inputs * 9)) ** 0.5, (outputs, inputs, 3, 3))
        weights.append((jnp.asarray(kernel, jnp.float32), jnp.zeros(outputs, jnp.float32)))
    kernel = random.normal(0, (1 / FEATURES) ** 0.5, (CLASSES, FEATURES))
    weights.append((jnp.asarray(kernel, jnp.float32), jnp.zeros(CLASSES, jnp.float32)))
    return weights


def logits(weights, images):
    x = images / 127.5 - 1
    for (kernel, bias), (_, _, stride) in zip(weights, LAYERS):
        strides = (stride, stride)
        x = jax.lax.conv_general_dilated(x, kernel, strides, "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        x = jax.nn.relu(x + bias[:, None, None])
    kernel, bias = weights[-1]
    return x.reshape(len(x), FEATURES) @ kernel.T + bias


def loss(weights, images, classes):
    log = jax.nn.log_softmax(logits(weights, images))
    return -jnp.take_along_axis(log, classes[:, None], axis=1).mean()


@jax.jit
def step(weights, first, second, n, rate, images, classes):
    """One of Adam."""
    gradient = jax.grad(loss)(weights, images, classes)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
    move = lambda w, m, v: w - rate * (m / (1 - 0.9**n)) / (jnp.sqrt(v / (1 - 0.999**n)) + 1e-8)
    return jax.tree.map(move, weights, first, second), first, second


def train(random, ink, classes):
    weights = initial(random)
    first = second = jax.tree.map(jnp.zeros_like, weights)
    n, steps = 0, EPOCHS * (len(ink) // BATCH)
    for epoch in range(EPOCHS):
        order = random.permutation(len(ink))
        images = disturb(random, render(ink[order], colours(random, len(ink))))
        for at in range(0, len(ink) - BATCH + 1, BATCH):
            n += 1
            rate = RATE * 0.5 * (1 + np.cos(np.pi * n / steps))
            batch = images[at : at + BATCH], classes[order][at : at + BATCH]
            weights, first, second = step(weights, first, second, n, rate, *batch)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss on the last batch {loss(weights, *batch):.4f}", flush=True)
    return weights


def main():
    random = np.random.default_rng(SEED)
    digits = load_digits()
    ink, classes = digits.images.astype(np.uint8), digits.target.astype(np.int32)
    split = train_test_split(ink, classes, test_size=0.2, stratify=classes, random_state=SEED)
    ink_train, ink_test, classes_train, classes_test = split
    pairs_test = colours(random, len(ink_test))
    weights = train(random, ink_train, classes_train)

    answers = np.asarray(logits(weights, render(ink_test, pairs_test).astype(np.float32))).argmax(axis=1)
    print(f"held out: {(answers == classes_test).sum()} of {len(answers)} right")
    DATA.mkdir(exist_ok=True)
    flat = [np.asarray(part, "<f4").tobytes() for layer in weights for part in layer]
    (DATA / "weights.bin").write_bytes(b"".join(flat))
    rows = [classes_test[:, None], pairs_test.reshape(-1, 6), ink_test.reshape(-1, 64)]
    (DATA / "held_out.bin").write_bytes(np.concatenate(rows, axis=1).astype(np.uint8).tobytes())


if __name__ == "__main__":
    main()
