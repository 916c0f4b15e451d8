from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segmentation.losses import IGNORE_INDEX
from segmentation.metrics import ConfusionMatrix


def random_batch(seed: int, num_classes: int, n: int = 3, size: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    prediction = torch.randint(num_classes, (n, size, size + 1), generator=generator)
    label = torch.randint(num_classes, (n, size, size + 1), generator=generator)
    ignored = torch.rand(label.shape, generator=generator) < 0.2
    return prediction, torch.where(ignored, IGNORE_INDEX, label)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9))
def test_matrix_is_the_brute_force_count(seed: int, num_classes: int) -> None:
    prediction, label = random_batch(seed, num_classes)
    confusion = ConfusionMatrix(num_classes)
    confusion.update(prediction, label)
    expected = np.zeros((num_classes, num_classes), dtype=np.int64)
    for p, t in zip(prediction.flatten().tolist(), label.flatten().tolist()):
        if t != IGNORE_INDEX:
            expected[t, p] += 1
    assert confusion.matrix.dtype == torch.int64
    assert np.array_equal(confusion.matrix.numpy(), expected)
    assert confusion.num_samples == 3


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 4))
def test_sum_over_shards_is_the_whole(seed: int, num_images: int, num_shards: int) -> None:
    prediction, label = random_batch(seed, 4, num_images)
    whole = ConfusionMatrix(4)
    whole.update(prediction, label)
    shards = [ConfusionMatrix(4) for _ in range(num_shards)]
    for rank, shard in enumerate(shards):
        for image in range(rank, num_images, num_shards):
            shard.update(prediction[image : image + 1], label[image : image + 1])
    assert torch.equal(torch.stack([shard.matrix for shard in shards]).sum(dim=0), whole.matrix)
    assert sum(shard.num_samples for shard in shards) == num_images


def test_scores_of_a_known_matrix() -> None:
    confusion = ConfusionMatrix(4)
    prediction = torch.tensor([[[0, 0, 1, 1, 3]]])
    label = torch.tensor([[[0, 1, 1, IGNORE_INDEX, 1]]])
    confusion.update(prediction, label)
    iou = confusion.iou()
    assert iou.dtype == torch.float64
    assert iou[:2].tolist() == [1 / 2, 1 / 3]
    assert math.isnan(iou[2])  # in neither label nor prediction
    assert iou[3] == 0.0  # predicted, never true
    assert confusion.miou() == pytest.approx((1 / 2 + 1 / 3 + 0) / 3)
    assert confusion.pixel_accuracy() == 2 / 4


def test_nothing_counted_is_nan_not_zero() -> None:
    confusion = ConfusionMatrix(3)
    confusion.update(torch.zeros(2, 4, 4, dtype=torch.long), torch.full((2, 4, 4), IGNORE_INDEX))
    assert confusion.num_samples == 2
    assert confusion.matrix.sum() == 0
    assert math.isnan(confusion.miou())
    assert math.isnan(confusion.pixel_accuracy())


def test_accepts_small_integer_types_without_overflow() -> None:
    prediction = torch.full((1, 2, 2), 20, dtype=torch.uint8)
    label = torch.full((1, 2, 2), 20, dtype=torch.int16)
    confusion = ConfusionMatrix(21)
    confusion.update(prediction, label)
    assert confusion.matrix[20, 20] == 4


def test_update_does_not_change_its_arguments() -> None:
    prediction, label = random_batch(0, 4)
    copies = prediction.clone(), label.clone()
    ConfusionMatrix(4).update(prediction, label)
    assert torch.equal(prediction, copies[0])
    assert torch.equal(label, copies[1])


@pytest.mark.parametrize(
    ("prediction", "label", "message"),
    [
        (5, 0, r"prediction contains the value 5; allowed are 0\.\.3"),
        (-1, 0, "prediction contains the value -1"),
        (0, 4, r"label contains the value 4, but num_classes is 4; use 0\.\.3, or 255"),
        (0, -1, "label contains the value -1"),
        (0, 300, "label contains the value 300"),
    ],
)
def test_a_value_that_is_not_a_class_is_refused_and_not_counted(prediction: int, label: int, message: str) -> None:
    confusion = ConfusionMatrix(4)
    with pytest.raises(ValueError, match=message):
        confusion.update(torch.full((1, 2, 2), prediction), torch.full((1, 2, 2), label))
    assert confusion.matrix.sum() == 0
    assert confusion.num_samples == 0


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"prediction \(1, 2, 2\) and label \(1, 2, 3\) must both be \(N, H, W\)"):
        ConfusionMatrix(4).update(torch.zeros(1, 2, 2).long(), torch.zeros(1, 2, 3).long())


def test_num_classes_must_leave_room_for_the_ignored_value() -> None:
    with pytest.raises(ValueError, match="num_classes must be between 1 and 255, got 256"):
        ConfusionMatrix(256)
