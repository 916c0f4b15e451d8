"""In a controlled run float32 means float64, and nothing breaks by it."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from traced_block import Events, controlled_block, in_float64

from retrofit.distributed import get_rank
from retrofit.verify.trace.computation.operators import OperatorTrace


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def controlled():
    with controlled_block() as events:
        yield events


def test_float32_means_float64(controlled):
    layer = nn.Linear(3, 2)
    assert layer.float() is layer and layer.weight.dtype == torch.float64
    made = [
        torch.zeros(3, dtype=torch.float32),
        torch.zeros(3, dtype=torch.int64).float(),
        torch.ones(3).to(torch.float32),
        torch.tensor([1.0], dtype=torch.float32),
        torch.tensor(np.zeros(2, np.float32)),
        torch.FloatTensor(3),
        torch.ones(3).sum(dtype=torch.float32),
        F.softmax(torch.ones(3), 0, dtype=torch.float32),
        torch.linalg.vector_norm(torch.ones(3), dtype=torch.float32),
        torch.from_numpy(np.ones(3, np.float32)).type(torch.float32) + torch.ones(3),
    ]
    assert [tensor.dtype for tensor in made] == [torch.float64] * len(made)
    shared = np.zeros(3, np.float32)
    torch.from_numpy(shared).add_(torch.ones(3))
    assert shared.tolist() == [1.0, 1.0, 1.0], "memory that is numpy's stays so"
    assert torch.ones(3).half().dtype == torch.float16 and torch.ones(3).bfloat16().dtype == torch.bfloat16


def narrow(*shape):
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


CASES = {
    "linear": (lambda: nn.Linear(3, 2), lambda net: net(narrow(4, 3))),
    "linear without bias": (lambda: nn.Linear(3, 2, bias=False), lambda net: net(narrow(4, 3))),
    "conv": (lambda: nn.Conv2d(3, 2, 3), lambda net: net(narrow(1, 3, 5, 5))),
    "grouped conv": (lambda: nn.Conv2d(4, 4, 3, groups=2), lambda net: net(narrow(1, 4, 5, 5))),
    "batch norm": (lambda: nn.BatchNorm2d(3), lambda net: net(narrow(2, 3, 5, 5))),
    "layer norm": (lambda: nn.LayerNorm(3), lambda net: net(narrow(2, 3))),
    "embedding": (lambda: nn.Embedding(5, 3), lambda net: net(torch.tensor([1, 2])) @ narrow(3, 2)),
    "lstm": (lambda: nn.LSTM(3, 2), lambda net: net(narrow(4, 1, 3))[0]),
    "attention": (lambda: nn.MultiheadAttention(4, 2), lambda net: net(*[narrow(3, 1, 4)] * 3)[0]),
    "class weights": (lambda: nn.Linear(3, 2), lambda net: F.cross_entropy(net(narrow(4, 3)), torch.tensor([0, 1, 1, 0]), weight=narrow(2).abs())),  # noqa: E501
    "binary loss": (lambda: nn.Linear(3, 2), lambda net: F.binary_cross_entropy_with_logits(net(narrow(4, 3)), narrow(4, 2).sigmoid())),  # noqa: E501
    "mse": (lambda: nn.Linear(3, 2), lambda net: F.mse_loss(net(narrow(4, 3)), narrow(4, 2))),
    "cat": (lambda: nn.Linear(3, 2), lambda net: torch.cat([net(narrow(4, 3)), narrow(4, 2)])),
    "stack and einsum": (lambda: nn.Linear(3, 2), lambda net: torch.einsum("nc,mc->nm", net(narrow(4, 3)), narrow(5, 2))),  # noqa: E501
    "index put": (lambda: nn.Linear(3, 2), lambda net: torch.zeros(4, 2).index_put((torch.tensor([0, 2]),), narrow(2, 2)) + net(narrow(4, 3))),  # noqa: E501
    "scatter": (lambda: nn.Linear(3, 2), lambda net: net(narrow(4, 3)).scatter_add(0, torch.zeros(1, 2, dtype=torch.long), narrow(1, 2))),  # noqa: E501
    "narrow target": (lambda: nn.Linear(3, 2), lambda net: narrow(4, 2).index_add_(0, torch.tensor([0]), net(narrow(4, 3))[:1].double())),  # noqa: E501
    "where": (lambda: nn.Linear(3, 2), lambda net: torch.where(torch.ones(4, 2) > 0, net(narrow(4, 3)), narrow(4, 2))),
    "narrow leaf": (lambda: nn.Linear(3, 2), lambda net: net(narrow(4, 3).requires_grad_())),
    "grid sample": (lambda: nn.Conv2d(1, 1, 1), lambda net: F.grid_sample(net(narrow(1, 1, 4, 4)), narrow(1, 2, 2, 2), align_corners=False)),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("case", CASES)
def test_float32_inputs_meet_float64_weights(controlled, case, autocast):
    make, use = CASES[case]
    torch.manual_seed(1)
    net = make()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = use(net)
    expected = use(net)
    if case != "narrow target":
        assert output.dtype == torch.float64
    assert torch.equal(output, expected), "under autocast it is the very float64 run"
    output.double().square().sum().backward()
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    assert gradients and all(gradient.dtype == torch.float64 for gradient in gradients)


def test_a_float32_leaf_has_a_float32_gradient_of_the_float64_one(controlled):
    leaf = nn.Parameter(narrow(4, 3))
    wide = leaf.detach().double().requires_grad_()
    weight = torch.randn(3, 2)
    for tensor in (leaf, wide):
        (tensor @ weight).tanh().sum().backward()
    assert leaf.grad.dtype == torch.float32
    torch.testing.assert_close(leaf.grad.double(), wide.grad, rtol=1e-6, atol=1e-6)


def test_a_cast_inside_backward_of_the_scripts_own_means_float64(controlled):
    seen = []

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient.float().dtype)
            return gradient * 2

    x = torch.ones(3, requires_grad=True)
    Own.apply(x).sum().backward()
    hidden = checkpoint(lambda value: seen.append(value.float().dtype) or value.float().tanh(), x, use_reentrant=False)
    hidden.sum().backward()
    assert seen == [torch.float64] * 3


def test_running_statistics_in_float32_are_updated(controlled):
    norm = nn.BatchNorm1d(3)
    norm.running_mean = torch.from_numpy(np.zeros(3, np.float32))
    norm(torch.ones(4, 3) * torch.arange(4.0)[:, None])
    torch.testing.assert_close(norm.running_mean, torch.full((3,), 0.15, dtype=torch.float32), check_dtype=False)
    assert norm.running_mean.dtype == torch.float32


def test_a_float32_checkpoint_loads_and_a_float64_one_is_saved(events):
    natural = nn.Linear(3, 2)
    file = io.BytesIO()
    torch.save({"model": natural.state_dict(), "loose": torch.arange(6.0).view(2, 3)[:, 1:]}, file)
    file.seek(0)
    with in_float64(), OperatorTrace(events, True, list):
        state = torch.load(file)
        assert state["loose"].tolist() == [[1.0, 2.0], [4.0, 5.0]]
        model = nn.Linear(3, 2)
        model.load_state_dict(state["model"])
        assert torch.equal(model.weight, natural.weight.double())
        other = io.BytesIO()
        torch.save(model.state_dict(), other)
        other.seek(0)
        assert torch.equal(torch.load(other)["weight"], model.weight)
        assigned = nn.Linear(3, 2)
        assigned.load_state_dict(state["model"], assign=True)
        optimizer = torch.optim.Adam(assigned.parameters())
        assigned(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert assigned.weight.dtype == torch.float32


@pytest.mark.skipif(not hasattr(torch.amp, "GradScaler"), reason="torch.amp.GradScaler came with torch 2.3")
@pytest.mark.parametrize("bad", [False, True], ids=["finite", "infinite"])
def test_a_gradient_scaler_works_in_float64(controlled, bad):
    scaler = torch.amp.GradScaler("cpu", growth_interval=1)
    layer = nn.Linear(3, 1)
    before = layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
    scaler.scale(layer(narrow(4, 3)).sum() * (float("inf") if bad else 1.0)).backward()
    scaler.unscale_(optimizer)
    if not bad:
        torch.testing.assert_close(layer.weight.grad, narrow(4, 3).double().sum(0, keepdim=True))
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(layer.weight, before) == bad
    assert scaler.get_scale() == 65536.0 * (0.5 if bad else 2.0)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
@pytest.mark.parametrize("option", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_optimizers_work_in_float64(controlled, kind, option):
    def steps(**options):
        torch.manual_seed(0)
        layer = nn.Linear(3, 1)
        try:
            optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=0.1, **options)
        except (RuntimeError, TypeError):
            pytest.skip("fused optimizers for the CPU came with torch 2.4")
        for _ in range(3):
            optimizer.zero_grad()
            layer(narrow(4, 3)).square().sum().backward()
            optimizer.step()
        return layer.weight.detach()

    torch.testing.assert_close(steps(**option), steps(foreach=False), rtol=0, atol=1e-12)


def test_a_default_of_float32_means_float64():
    set_dtype = torch.set_default_dtype
    with in_float64():
        torch.set_default_dtype(torch.float32)
        assert torch.zeros(1).dtype == torch.float64
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated, and still in use
            torch.set_default_tensor_type(torch.FloatTensor)
        assert torch.zeros(1).dtype == torch.float64
        torch.set_default_dtype(torch.bfloat16)
        assert torch.zeros(1).dtype == torch.bfloat16
    assert torch.set_default_dtype is set_dtype and torch.zeros(1).dtype == torch.float32


def float32_over_ranks():
    """Float32 tensors, a model in float32 and a broadcast of it go through DDP and collectives as they are."""
    with in_float64(), OperatorTrace(Events(), True, list):
        tensor = torch.from_numpy(np.full(3, get_rank() + 1, np.float32))
        dist.all_reduce(tensor)
        model = nn.Linear(3, 1, bias=False)
        model.load_state_dict({"weight": torch.from_numpy(np.ones((1, 3), np.float32))}, assign=True)
        wrapped = DistributedDataParallel(model)
        for _ in range(2):
            model.zero_grad()
            wrapped(torch.full((1, 3), float(get_rank()))).sum().backward()
    return tensor.dtype, tensor.tolist(), model.weight.grad.tolist()


def test_float32_passes_through_collectives_unchanged(ranks):
    assert ranks(2).run(float32_over_ranks) == [(torch.float32, [3.0] * 3, [[0.5] * 3])] * 2


def test_higher_order_operators_run(controlled):
    if not hasattr(torch, "cond"):
        pytest.skip("torch.cond came with torch 2.4")
    ones = torch.ones(3)
    assert torch.equal(torch.cond(ones.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (ones,)), ones.sin())


def test_compiled_functions_draw_the_same(controlled):
    if not hasattr(torch.compiler, "set_stance"):
        pytest.skip("before torch 2.6 dynamo compiles under a dispatch mode, where it ought to stand back")

    def forward(x):
        return F.dropout(x.float(), 0.5)

    outputs = []
    for run in (forward, torch.compile(forward, backend="eager")):
        torch.manual_seed(7)
        outputs.append(run(torch.ones(6, 50)))
    assert torch.equal(*outputs) and outputs[0].dtype == torch.float64
