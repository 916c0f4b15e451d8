"""Draw textured shapes on a textured background, from a seed alone.

Each class has a shape, a texture and a family of colours; the families overlap with each other and with the
background, so colour helps but does not decide. Labels have a border of 255 around each shape, as PASCAL
VOC has.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from segmentation.datasets.base import SPLITS
from segmentation.losses import IGNORE_INDEX

SYNTHETIC_NAMES = ["background", "disc", "square", "triangle", "ring"]
# Mean colour of each class, in 0..1. Shapes of one class vary around it by COLOR_SPREAD (standard
# deviation).
CLASS_COLORS = np.array(
    [[0.48, 0.48, 0.48], [0.75, 0.35, 0.30], [0.35, 0.65, 0.35], [0.35, 0.42, 0.75], [0.72, 0.64, 0.30]],
    dtype=np.float32,
)
COLOR_SPREAD = 0.09
NOISE = 0.05  # standard deviation of the noise on every pixel
BORDER = (-0.5, 1.0)  # pixels inside and outside the contour that are ignored
DISC, SQUARE, TRIANGLE, RING = 1, 2, 3, 4
Window = tuple[slice, slice]


class Shape(NamedTuple):
    """One shape: centre (y, x) and radius in pixels, rotation in radians."""

    kind: int
    center: tuple[float, float]
    radius: float
    angle: float


@functools.lru_cache(maxsize=8)
def _axis(size: int) -> np.ndarray:
    """Pixel centres 0.5, 1.5 ... as a read-only array."""
    axis = np.arange(size, dtype=np.float32) + np.float32(0.5)
    axis.setflags(write=False)
    return axis


@functools.lru_cache(maxsize=8)
def _upsampling(size: int, knots: int) -> np.ndarray:
    """Linear interpolation from `knots` values to `size` pixels, as a read-only (size, knots) matrix."""
    position = _axis(size)[:, None] / size * (knots - 1)
    matrix = np.maximum(0.0, 1.0 - np.abs(position - np.arange(knots, dtype=np.float32))).astype(np.float32)
    matrix.setflags(write=False)
    return matrix


def _smooth_noise(rng: np.random.Generator, size: int, knots: int, channels: int) -> np.ndarray:
    """Draw noise that varies over size / knots pixels, (channels, size, size), standard deviation below 1."""
    up = _upsampling(size, knots)
    return np.asarray(up @ rng.standard_normal((channels, knots, knots), dtype=np.float32) @ up.T)


def shape_window(shape: Shape, size: int, margin: float) -> Window:
    """The part of the image that the shape can touch, `margin` pixels included."""
    reach = shape.radius * 1.05 + margin
    y, x = (slice(max(0, int(c - reach)), min(size, int(c + reach) + 2)) for c in shape.center)
    return y, x


def local_coordinates(shape: Shape, size: int, window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of the window's pixels in the frame of the shape, in pixels: v (down), u (right)."""
    axis = _axis(size)
    dy = (axis[window[0]] - np.float32(shape.center[0]))[:, None]
    dx = (axis[window[1]] - np.float32(shape.center[1]))[None, :]
    cos, sin = np.float32(np.cos(shape.angle)), np.float32(np.sin(shape.angle))
    return cos * dy - sin * dx, sin * dy + cos * dx


def signed_distance(shape: Shape, v: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Signed distance to the contour in pixels, negative inside."""
    r = np.float32(shape.radius)
    if shape.kind == DISC:
        return np.sqrt(u * u + v * v) - r * np.float32(0.85)
    if shape.kind == SQUARE:
        return np.maximum(np.abs(u), np.abs(v)) - r * np.float32(0.72)
    if shape.kind == TRIANGLE:
        return np.maximum(v, np.float32(0.8660254) * np.abs(u) - np.float32(0.5) * v) - r * np.float32(0.5)
    return np.abs(np.sqrt(u * u + v * v) - r * np.float32(0.68)) - r * np.float32(0.28)


def _texture(kind: int, v: np.ndarray, u: np.ndarray, period: float, phase: float) -> np.ndarray:
    """Pattern of a class, -1..1: disc dots, square stripes, triangle checks, ring ripples."""
    k, shift = np.float32(2 * np.pi / period), np.float32(phase)
    if kind == DISC:
        return np.asarray(np.sin(k * v) * np.sin(k * u + shift))
    if kind == SQUARE:
        return np.asarray(np.sin(k * u + shift))
    if kind == TRIANGLE:
        return np.asarray(np.sign(np.sin(k * v) * np.sin(k * u + shift)))
    return np.asarray(np.sin(k * np.sqrt(u * u + v * v) + shift))


def _draw_shapes(rng: np.random.Generator, size: int) -> list[Shape]:
    """Draw 1 to 4 shapes: kind, position, size and rotation."""
    count = int(rng.integers(1, 5))
    kinds = rng.integers(1, len(SYNTHETIC_NAMES), count)
    radii = rng.uniform(0.20, 0.36, count) * size
    centers = rng.uniform(0.12, 0.88, (count, 2)) * size
    angles = rng.uniform(0.0, 2 * np.pi, count)
    return [
        Shape(int(k), (float(c[0]), float(c[1])), float(r), float(a))
        for k, c, r, a in zip(kinds, centers, radii, angles)
    ]


def _background(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draw a background (3, size, size): a colour that may come near a class's, clouds, and faint stripes."""
    color = CLASS_COLORS[0] + rng.normal(0.0, 0.10, 3).astype(np.float32)
    image = 0.08 * _smooth_noise(rng, size, 5, 3) + color[:, None, None]
    frequency = rng.uniform(-0.6, 0.6, 2).astype(np.float32)
    axis = _axis(size)
    image += rng.uniform(0.0, 0.06) * np.sin(frequency[0] * axis[:, None] + frequency[1] * axis)
    return np.asarray(image.astype(np.float32, copy=False))


def _paint(
    image: np.ndarray,
    label: np.ndarray,
    owner: np.ndarray,
    shape: Shape,
    number: int,
    rng: np.random.Generator,
) -> None:
    """Paint a shape over image (3, S, S), label (S, S) and owner (S, S), which this generation owns."""
    size = label.shape[0]
    color = CLASS_COLORS[shape.kind] + rng.normal(0.0, COLOR_SPREAD, 3).astype(np.float32)
    contrast, period, phase = (
        rng.uniform(0.14, 0.24),
        rng.uniform(0.08, 0.12) * size,
        rng.uniform(0.0, 2 * np.pi),
    )
    window = shape_window(shape, size, 2.0)
    v, u = local_coordinates(shape, size, window)
    distance = signed_distance(shape, v, u)
    alpha = np.clip(np.float32(0.5) - distance, 0.0, 1.0)
    pattern = np.float32(contrast) * _texture(shape.kind, v, u, period, phase)
    part = image[(slice(None), *window)]
    part += alpha * (color[:, None, None] + pattern - part)
    label[window][distance < BORDER[1]] = IGNORE_INDEX
    inside = distance < BORDER[0]
    label[window][inside] = shape.kind
    owner[window][inside] = number


def image_generator(seed: int, split: str, index: int, *stream: int) -> np.random.Generator:
    """Return the random generator of one image; other `stream`s of the image draw independently."""
    # spawn_key keeps (seed, split, index) apart for seeds of any length; a plain list of numbers would not.
    key = (SPLITS.index(split), index, *stream)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed % 2**64, spawn_key=key)))


def generate(seed: int, split: str, index: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Shape]]:
    """Generate one image from the arguments alone: (image (3, S, S), label, owner (S, S), shapes), uint8.

    owner: 0 = background, i = the i-th shape of the list, as far as visible.
    """
    rng = image_generator(seed, split, index)
    shapes = _draw_shapes(rng, size)
    image = _background(rng, size)
    label = np.zeros((size, size), dtype=np.uint8)
    owner = np.zeros((size, size), dtype=np.uint8)
    for number, shape in enumerate(shapes, start=1):
        _paint(image, label, owner, shape, number, rng)
    image += np.float32(NOISE) * rng.standard_normal(image.shape, dtype=np.float32)
    return (
        (np.clip(image, 0.0, 1.0) * np.float32(255.0) + np.float32(0.5)).astype(np.uint8),
        label,
        owner,
        shapes,
    )
