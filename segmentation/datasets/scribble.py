"""Weak labels for the synthetic shapes: thin scribbles, and a noisy dense mask as pseudo-label."""

from __future__ import annotations

import numpy as np

from segmentation.datasets.shapes import RING, Shape, local_coordinates, shape_window, signed_distance
from segmentation.losses import IGNORE_INDEX

STROKE_POINTS = 48
MAX_SHIFT = 0.04  # of the image side: how far the pseudo-label of a shape is displaced
MAX_GROWTH = 0.04  # of the image side: how far its contour is dilated or eroded
WRONG_CLASS = 0.05  # fraction of shapes with another class in the pseudo-label


def _stroke(shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Draw a wavy line through a shape (an arc along a ring); points (P, 2) as (y, x) in pixels."""
    t = np.linspace(-1.0, 1.0, STROKE_POINTS)
    if shape.kind == RING:
        turn = np.pi * rng.uniform(0.5, 0.9) * t + rng.uniform(0.0, 2 * np.pi)
        along, across = 0.68 * np.cos(turn), 0.68 * np.sin(turn)
    else:
        along = rng.uniform(0.35, 0.6) * t
        across = 0.12 * np.sin(rng.uniform(2.0, 4.0) * t + rng.uniform(0.0, 2 * np.pi))
    angle = rng.uniform(0.0, 2 * np.pi)
    y = shape.center[0] + shape.radius * (np.cos(angle) * along - np.sin(angle) * across)
    x = shape.center[1] + shape.radius * (np.sin(angle) * along + np.cos(angle) * across)
    return np.stack([y, x], axis=1)


def _background_stroke(size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a wavy line across the image, from left to right or from top to bottom."""
    t = np.linspace(0.06, 0.94, 2 * size)
    wave = rng.uniform(0.2, 0.8) + 0.15 * np.sin(rng.uniform(3.0, 7.0) * t + rng.uniform(0.0, 2 * np.pi))
    points = np.stack([np.clip(wave, 0.02, 0.98), t], axis=1) * size
    return points if rng.random() < 0.5 else points[:, ::-1]


def scribble_label(label: np.ndarray, owner: np.ndarray, shapes: list[Shape], rng: np.random.Generator) -> np.ndarray:
    """Keep a thin stroke per visible region of a dense label (S, S) uint8, background too; 255 elsewhere.

    A stroke that misses its region (most of it covered by another shape) is replaced by a short dash inside.
    """
    size = label.shape[0]
    scribble = np.full_like(label, IGNORE_INDEX)
    strokes = [_background_stroke(size, rng), *(_stroke(shape, rng) for shape in shapes)]
    for number, points in enumerate(strokes):
        region = (owner == number) & (label != IGNORE_INDEX)
        y, x = np.clip(points.astype(np.int64), 0, size - 2).T
        marked = np.zeros_like(region)
        for dy, dx in ((0, 0), (0, 1), (1, 0)):  # about two pixels wide
            marked[y + dy, x + dx] = True
        marked &= region
        if not marked.any():
            inside = np.flatnonzero(region)
            marked.flat[inside[len(inside) // 2 : len(inside) // 2 + 4]] = True
        scribble[marked] = label[marked]
    return scribble


def pseudo_label(shapes: list[Shape], size: int, rng: np.random.Generator) -> np.ndarray:
    """Draw an approximate mask (S, S) uint8: shapes shifted, dilated or eroded, a few of a wrong class."""
    pseudo = np.zeros((size, size), dtype=np.uint8)
    for shape in shapes:
        shift = rng.uniform(-MAX_SHIFT, MAX_SHIFT, 2) * size
        growth = rng.uniform(-MAX_GROWTH, MAX_GROWTH) * size
        kind = int(rng.integers(1, 5)) if rng.random() < WRONG_CLASS else shape.kind
        moved = shape._replace(center=(shape.center[0] + float(shift[0]), shape.center[1] + float(shift[1])))
        window = shape_window(moved, size, margin=2.0 + MAX_GROWTH * size)
        distance = signed_distance(moved, *local_coordinates(moved, size, window))
        pseudo[window][distance < growth] = kind
    return pseudo
