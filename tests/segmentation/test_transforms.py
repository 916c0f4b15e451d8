from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import v2

from segmentation.losses import IGNORE_INDEX
from segmentation.transforms import (
    FILL_IMAGE,
    FILL_MASK,
    IMAGENET_MEAN,
    IMAGENET_STD,
    ColorJitterNormalize,
    RandomScaleCrop,
    ToPlainTensors,
    denormalize,
    eval_transform,
    normalize,
    scale_limits,
    train_transform,
)

sides = st.integers(20, 130)


def ramp(height: int, width: int, axis: int) -> tuple[tv_tensors.Image, tv_tensors.Mask]:
    """An image whose colour, and a mask whose class, is the position along an axis."""
    position = torch.arange(height).view(-1, 1) if axis == 0 else torch.arange(width).view(1, -1)
    position = position.expand(height, width).to(torch.uint8).contiguous()
    return tv_tensors.Image(position.expand(3, height, width).clone()), tv_tensors.Mask(position)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), sides, sides, st.integers(16, 130), st.integers(0, 1))
def test_image_and_mask_move_together(seed: int, height: int, width: int, crop: int, axis: int) -> None:
    # On a ramp, bilinear and nearest differ by at most half a step of the source, if they are aligned.
    torch.manual_seed(seed)
    image, mask = ramp(height, width, axis)
    steps = v2.Compose([RandomScaleCrop(crop), v2.RandomHorizontalFlip(0.5)])
    image, mask, none = steps(image, mask, None)
    assert none is None
    assert image.shape == (3, crop, crop)
    assert mask.shape == (crop, crop)
    inside = mask != FILL_MASK
    assert inside.any()
    difference = (image[0].int() - mask.int()).abs()[inside]
    assert difference.max() <= 1
    padding = image[:, ~inside]
    assert torch.equal(padding, torch.tensor(FILL_IMAGE, dtype=torch.uint8).view(3, 1).expand_as(padding))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), sides, sides, st.integers(16, 130))
def test_label_and_pseudo_label_move_together_and_gain_no_class(seed: int, height: int, width: int, crop: int) -> None:
    torch.manual_seed(seed)
    mask = torch.randint(5, (height, width), dtype=torch.uint8)
    pseudo = torch.where(mask == 3, 4, mask)
    image = torch.randint(256, (3, height, width), dtype=torch.uint8)
    _, label, out = train_transform(crop)(tv_tensors.Image(image), tv_tensors.Mask(mask), tv_tensors.Mask(pseudo))
    assert set(label.unique().tolist()) <= {0, 1, 2, 3, 4, IGNORE_INDEX}
    assert torch.equal(torch.where(label == 3, 4, label), out)


def raw_sample(size: int = 80) -> tuple[tv_tensors.Image, tv_tensors.Mask, None]:
    generator = torch.Generator().manual_seed(1)
    image = torch.randint(256, (3, size, size), dtype=torch.uint8, generator=generator)
    mask = torch.randint(5, (size, size), dtype=torch.uint8, generator=generator)
    return tv_tensors.Image(image), tv_tensors.Mask(mask), None


def test_torch_seed_alone_decides() -> None:
    transform = train_transform(64)
    torch.manual_seed(3)
    first = transform(*raw_sample())
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(3)
    again = transform(*raw_sample())
    other = transform(*raw_sample())
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not torch.equal(first[0], other[0])


def test_every_kind_of_change_happens() -> None:
    torch.manual_seed(0)
    step = RandomScaleCrop(64)
    image, mask = ramp(80, 80, 1)
    crops = [step(image, mask)[1] for _ in range(40)]
    steps_per_pixel = [float(crop[0][crop[0] != FILL_MASK].float().diff().mean()) for crop in crops]
    assert min(steps_per_pixel) < 0.85  # enlarged
    assert max(steps_per_pixel) > 1.15  # reduced
    assert len({int(crop[0, 0]) for crop in crops}) > 5  # from different places
    assert any(bool((crop == FILL_MASK).any()) for crop in crops)  # padded


def test_scale_is_bounded_for_small_images_only() -> None:
    assert scale_limits(375, 321) == (0.5, 2.0)
    assert scale_limits(96, 96) == (0.5, 2.0)
    assert scale_limits(64, 64) == (0.75, 64 / 48)
    assert scale_limits(30, 30) == (1.0, 1.0)


def test_masks_of_the_source_are_untouched_and_outputs_own_their_memory() -> None:
    image, mask, _ = raw_sample(64)
    before = image.clone(), mask.clone()
    for transform in (train_transform(64), eval_transform()):
        for _ in range(5):
            outputs = transform(image, mask, mask)
            for output in outputs:
                output.fill_(7)
    assert torch.equal(image, before[0])
    assert torch.equal(mask, before[1])


def test_outputs_are_plain_contiguous_tensors_of_the_documented_types() -> None:
    for transform in (train_transform(64), eval_transform()):
        image, label, pseudo = transform(*raw_sample(64))
        assert [type(x) for x in (image, label, pseudo)] == [torch.Tensor] * 3
        assert [x.dtype for x in (image, label, pseudo)] == [torch.float32, torch.int64, torch.int64]
        assert all(x.is_contiguous() for x in (image, label, pseudo))
        assert torch.equal(label, pseudo)
        assert label.data_ptr() != pseudo.data_ptr()


def test_eval_is_to_float_and_normalize() -> None:
    image, mask, _ = raw_sample()
    state = torch.get_rng_state()
    out, label, _ = eval_transform()(image, mask, None)
    assert torch.equal(torch.get_rng_state(), state)
    expected = v2.functional.normalize(image.float() / 255, list(IMAGENET_MEAN), list(IMAGENET_STD))
    torch.testing.assert_close(out, expected.as_subclass(torch.Tensor), atol=1e-5, rtol=0)
    assert torch.equal(label, mask.long())
    assert torch.equal(normalize(image), out)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_colour_jitter_equals_the_chain_of_torchvision(seed: int) -> None:
    torch.manual_seed(seed)
    # Mid-range colours: torchvision clamps after every step, this once at the end.
    image = torch.randint(100, 140, (3, 12, 10), dtype=torch.uint8)
    state = torch.get_rng_state()
    out = ColorJitterNormalize(0.3, 0.3, 0.3)(tv_tensors.Image(image))[0]
    torch.set_rng_state(state)
    brightness, contrast, saturation = (0.7 + 0.6 * float(torch.rand(())) for _ in range(3))
    x = image.float() / 255
    x = v2.functional.adjust_brightness(x, brightness)
    x = v2.functional.adjust_contrast(x, contrast)
    x = v2.functional.adjust_saturation(x, saturation)
    x = v2.functional.normalize(x, list(IMAGENET_MEAN), list(IMAGENET_STD))
    torch.testing.assert_close(out.as_subclass(torch.Tensor), x, atol=2e-3, rtol=0)


def test_colours_stay_in_range() -> None:
    torch.manual_seed(0)
    low = (0 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    high = (1 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    for _ in range(20):
        out = ColorJitterNormalize(0.9, 0.9, 0.9)(raw_sample()[0])[0].as_subclass(torch.Tensor)
        assert (out >= low.view(3, 1, 1) - 1e-6).all()
        assert (out <= high.view(3, 1, 1) + 1e-6).all()


def test_denormalize_undoes_normalize_for_one_image_and_a_batch() -> None:
    image = raw_sample()[0].as_subclass(torch.Tensor)
    back = denormalize(normalize(image))
    torch.testing.assert_close(back, image.float() / 255, atol=1e-6, rtol=0)
    assert torch.equal(denormalize(normalize(image)[None])[0], back)


def test_plain_tensors_without_pseudo_label() -> None:
    image, mask, _ = raw_sample()
    assert len(ToPlainTensors()(image, mask)) == 3


@pytest.mark.parametrize("crop", [0, -3])
def test_crop_size_must_be_positive(crop: int) -> None:
    with pytest.raises(ValueError, match=f"crop_size must be a positive number of pixels, got {crop}"):
        train_transform(crop)


def test_scale_must_be_an_interval() -> None:
    with pytest.raises(ValueError, match=r"scale must be \(low, high\).* got \(2.0, 1.0\)"):
        RandomScaleCrop(8, scale=(2.0, 1.0))
