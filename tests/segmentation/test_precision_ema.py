from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from segmentation.ema import ModelEMA
from segmentation.precision import autocast, full_precision, gradient_scaler

CPU = torch.device("cpu")


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))


def fill(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


@pytest.mark.parametrize(("amp", "dtype"), [("off", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_dtype_without_a_warning(amp: str, dtype: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch 2.1 warns about float32 as an autocast type, and fails on it
        with autocast(CPU, amp):
            product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == dtype


def test_fp16_without_a_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match=r"--amp fp16 needs a CUDA GPU.*use --amp bf16 or --amp off"):
        autocast(CPU, "fp16")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU, so fp16 works")
def test_fp16_without_a_gpu_is_refused_before_training() -> None:
    """The scaler is made with the optimizer: nothing has been written by then."""
    with pytest.raises(ValueError, match="--amp fp16 needs a CUDA GPU"):
        gradient_scaler("fp16")


@pytest.mark.parametrize("amp", ["off", "bf16"])
def test_the_scaler_only_acts_for_fp16(amp: str) -> None:
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = gradient_scaler(amp)
    scaler.scale(3 * weight.sum()).backward()
    assert weight.grad is not None and weight.grad.item() == 3.0
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == -2.0
    scaler.load_state_dict(scaler.state_dict())  # what a resumed run does


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)],
)
def test_full_precision(dtype: torch.dtype, expected: torch.dtype) -> None:
    assert full_precision(torch.ones(2, dtype=dtype)).dtype == expected


def test_average_of_known_weights() -> None:
    model = small_model()
    fill(model, 1.0)
    ema = ModelEMA(model, decay=0.75)
    ema.update_parameters(model)  # the first update takes the weights as they are
    fill(model, 5.0)
    ema.update_parameters(model)
    assert all(torch.equal(value, torch.full_like(value, 2.0)) for value in ema.parameters())  # 0.75 * 1 + 0.25 * 5
    assert all(torch.equal(value, torch.full_like(value, 5.0)) for value in model.parameters())


def test_buffers_are_those_of_the_model() -> None:
    model = small_model()
    ema = ModelEMA(model, decay=0.9)
    model(torch.rand(4, 1, 3, 3))
    ema.update_parameters(model)
    assert all(torch.equal(mine, its) for mine, its in zip(ema.module.buffers(), model.buffers()))


def test_the_state_is_that_of_a_plain_model() -> None:
    model = small_model()
    ema = ModelEMA(model, decay=0.9)
    assert list(ema.state_dict()) == list(model.state_dict())  # no module. prefix, no counter
    fresh = small_model()
    fill(fresh, 7.0)
    fresh.load_state_dict(ema.state_dict())


def test_a_loaded_average_continues_like_an_uninterrupted_one() -> None:
    model = small_model()
    ema = ModelEMA(model, decay=0.5)
    ema.update_parameters(model)
    saved = copy.deepcopy(ema.state_dict())
    resumed = ModelEMA(small_model(), decay=0.5)
    resumed.load_state_dict(saved)
    fill(model, 3.0)
    ema.update_parameters(model)
    resumed.update_parameters(model)
    assert all(torch.equal(mine, its) for mine, its in zip(ema.parameters(), resumed.parameters()))
    assert not any(torch.equal(value, torch.full_like(value, 3.0)) for value in ema.parameters())
