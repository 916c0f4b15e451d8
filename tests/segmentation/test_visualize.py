from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from segmentation.transforms import normalize
from segmentation.visualize import colorize, palette, panel, panel_grid, save_index_png


def test_palette_has_the_voc_colours() -> None:
    colors = palette(21)
    assert colors.dtype == np.uint8
    assert colors.shape == (21, 3)
    assert colors[[0, 1, 2, 3, 15, 20]].tolist() == [
        [0, 0, 0],
        [128, 0, 0],
        [0, 128, 0],
        [128, 128, 0],
        [192, 128, 128],
        [0, 64, 128],
    ]
    assert palette(256)[255].tolist() == [224, 224, 192]
    assert len({tuple(color) for color in palette(256).tolist()}) == 256


def test_index_png_keeps_indices_and_carries_the_palette(tmp_path: Path) -> None:
    mask = torch.tensor([[0, 1, 20], [255, 7, 3]])
    save_index_png(mask, tmp_path / "mask.png")
    with Image.open(tmp_path / "mask.png") as image:
        assert image.mode == "P"
        assert np.array_equal(np.array(image), mask.numpy())
        assert np.array_equal(np.array(image.convert("RGB")), np.array(colorize(mask)))


def test_colorize_paints_each_class() -> None:
    image = colorize(np.array([[1, 255]]))
    assert image.mode == "RGB"
    assert np.array(image).tolist() == [[[128, 0, 0], [224, 224, 192]]]


def test_panel_is_input_label_prediction() -> None:
    photo = torch.randint(256, (3, 4, 5), dtype=torch.uint8)
    label, prediction = torch.randint(5, (4, 5)), torch.randint(5, (4, 5))
    out = panel(normalize(photo), label, prediction)
    assert out.shape == (3, 4, 15)
    assert out.dtype == torch.uint8
    assert torch.equal(out[:, :, :5], photo)
    for start, mask in ((5, label), (10, prediction)):
        expected = torch.from_numpy(np.array(colorize(mask))).permute(2, 0, 1)
        assert torch.equal(out[:, :, start : start + 5], expected)


@pytest.mark.parametrize("value", [-1, 256])
def test_values_that_do_not_fit_a_byte_are_refused(value: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"mask values must be 0..255, got {value}"):
        save_index_png(torch.full((2, 2), value), tmp_path / "mask.png")
    assert not list(tmp_path.iterdir())


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"a mask must be \(H, W\), got shape \(1, 2, 2\)"):
        colorize(torch.zeros(1, 2, 2))
    with pytest.raises(ValueError, match=r"image \(3, 2, 2\), label \(2, 2\) and prediction \(2, 3\)"):
        panel(torch.zeros(3, 2, 2), torch.zeros(2, 2), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="num_classes must be between 0 and 256, got 257"):
        palette(257)


def test_the_grid_has_a_row_per_sample_and_lines_between() -> None:
    images = torch.stack([normalize(torch.full((3, 2, 4), 128, dtype=torch.uint8))] * 2)
    labels = torch.stack([torch.zeros(2, 4), torch.ones(2, 4)]).long()
    grid = panel_grid(images, labels, 1 - labels)
    assert grid.dtype == torch.uint8 and grid.shape == (3, 2 * (2 + 2) + 2, 3 * (4 + 2) + 2)
    dark_red = torch.tensor([128, 0, 0], dtype=torch.uint8)
    for row, (label, prediction) in enumerate([(0, 1), (1, 0)]):
        top = 2 + row * 4
        assert torch.equal(grid[:, top, 2], torch.tensor([128, 128, 128], dtype=torch.uint8))
        assert torch.equal(grid[:, top + 1, 8], dark_red * label)
        assert torch.equal(grid[:, top + 1, 17], dark_red * prediction)
        assert bool((grid[:, top - 2 : top] == 255).all() and (grid[:, :, 6:8] == 255).all())
