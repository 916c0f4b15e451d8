"""The summed cross entropy: equal to PyTorch's, additive over shards, safe where nothing is labelled."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from segmentation.losses import IGNORE_INDEX, cross_entropy_sum, num_valid_pixels


def make_batch(num_images: int = 4, num_classes: int = 5, ignored: float = 0.3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(num_images, num_classes, 9, 7, generator=generator)
    label = torch.randint(num_classes, (num_images, 9, 7), generator=generator)
    label[torch.rand(label.shape, generator=generator) < ignored] = IGNORE_INDEX
    return logits.requires_grad_(), label


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_value_and_gradient_equal_pytorch(label_smoothing: float) -> None:
    logits, label = make_batch()
    expected = F.cross_entropy(
        logits, label, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing
    )
    (expected_gradient,) = torch.autograd.grad(expected, logits)
    loss = cross_entropy_sum(logits, label, label_smoothing=label_smoothing)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.shape == ()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)


def test_divided_by_the_valid_pixels_it_is_the_mean() -> None:
    logits, label = make_batch()
    mean = cross_entropy_sum(logits, label) / num_valid_pixels(label)
    torch.testing.assert_close(mean, F.cross_entropy(logits, label, ignore_index=IGNORE_INDEX))


def test_sums_of_uneven_shards_add_up() -> None:
    """The reason for a sum: a mean of the shards' means would not be the mean of the batch."""
    logits, label = make_batch()
    label[0] = IGNORE_INDEX
    label[0, 0, 0] = 1  # a shard with a single labelled pixel
    parts = [cross_entropy_sum(logits[i : i + 1], label[i : i + 1]) for i in range(4)]
    torch.testing.assert_close(torch.stack(parts).sum(), cross_entropy_sum(logits, label))
    assert sum(num_valid_pixels(label[i : i + 1]) for i in range(4)) == num_valid_pixels(label)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_all_ignored_is_zero_and_differentiable(label_smoothing: float) -> None:
    logits, label = make_batch(ignored=2.0)
    loss = cross_entropy_sum(logits, label, label_smoothing=label_smoothing)
    assert loss.item() == 0.0
    loss.backward()
    assert logits.grad is not None and torch.equal(logits.grad, torch.zeros_like(logits))
    assert num_valid_pixels(label) == 0


def test_num_valid_pixels_counts_what_is_not_ignored() -> None:
    label = torch.tensor([[[0, 1, IGNORE_INDEX], [254, IGNORE_INDEX, 0]]])
    count = num_valid_pixels(label)
    assert count == 4 and type(count) is int
    assert num_valid_pixels(torch.empty(0, 3, 3, dtype=torch.int64)) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    """8190 pixels of loss ln 2: bfloat16 cannot even count that far in ones."""
    logits = torch.zeros(1, 2, 90, 91, dtype=dtype, requires_grad=True)
    loss = cross_entropy_sum(logits, torch.zeros(1, 90, 91, dtype=torch.int64))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(8190 * 0.6931472, rel=1e-5)
    loss.backward()
    assert logits.grad is not None and logits.grad.dtype == dtype


def test_autocast_does_not_lower_the_precision() -> None:
    logits, label = make_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = cross_entropy_sum(logits, label)
    assert torch.equal(loss, cross_entropy_sum(logits, label))


@pytest.mark.parametrize("shape", [(4, 7, 9), (3, 9, 7), (4, 1, 9, 7)])
def test_shapes_that_do_not_match_are_refused(shape: tuple[int, ...]) -> None:
    logits, _ = make_batch()
    with pytest.raises(ValueError, match=r"shape \(4, 5, 9, 7\) and label of shape .* do not belong together"):
        cross_entropy_sum(logits, torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_label_outside_the_classes_is_named(label_smoothing: float) -> None:
    logits, label = make_batch()
    label[0, 0, 0], label[1, 0, 0] = 5, 20
    with pytest.raises(ValueError, match=r"label holds \[5, 20\], but the model has 5 classes; raise num_cl"):
        cross_entropy_sum(logits, label, label_smoothing=label_smoothing)
