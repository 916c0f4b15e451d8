"""The transparent DDP wrapper, on real ranks."""

from __future__ import annotations

import contextlib
import copy
import io
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from retrofit.distributed import DDPWrapper, distribute_model, get_rank, unwrap_model
from retrofit.distributed.collectives import gather_objects
from retrofit.distributed.ddp.forward_guard import run_alone
from retrofit.distributed.ddp.model import wrap_ddp
from retrofit.distributed.ddp.sync_batchnorm import convert_sync_batchnorm
from retrofit.distributed.ddp.unwrap import strip_wrapper_prefixes
from retrofit.distributed.ddp.wrapper import broadcast_buffers
from retrofit.distributed.process.process_group import is_distributed
from retrofit.distributed.strategies.select import gradient_sync, wrap_model


class Model(nn.Module):
    """Small, with what real models have: containers, buffers, own attributes and methods beside forward."""

    def __init__(self, recompute=None):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
        self.num_classes = 2
        self.dim = 192
        self.temperature = 1.0
        self.recompute = recompute

    def forward(self, x):
        if self.recompute is None:
            features = self.backbone(x)
        else:
            features = checkpoint(self.backbone, x, use_reentrant=self.recompute == "reentrant")
        return (self.heads[0](features) + self.heads[1](features)) * self.temperature

    def forward_eval(self, x):
        return self.heads[0](self.backbone(x))


def new_model(**options):
    torch.manual_seed(0)
    return Model(**options)


def data(num_per_rank=4):
    """This rank's part of a common batch, the whole batch outside a group."""
    x = torch.randn(2 * num_per_rank, 3, generator=torch.Generator().manual_seed(1))
    return x[get_rank() * num_per_rank : (get_rank() + 1) * num_per_rank] if is_distributed() else x


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def same_on_all_ranks(tensors):
    return all(
        all(torch.equal(mine, theirs) for mine, theirs in zip(tensors.values(), other.values()))
        for other in gather_objects(tensors)
    )


# ---- outside a group


def test_outside_a_group_the_wrapper_is_the_module_itself():
    model = Model()
    assert DDPWrapper(model) is model
    assert wrap_model(model) is model
    assert unwrap_model(model) is model
    broadcast_buffers(model)
    with gradient_sync(model, False):
        model(data()).sum().backward()


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="unknown strategy 'zero'; use one of: auto, single, dp, ddp, fsdp"):
        wrap_model(Model(), "zero")


def without_the_kit():
    with mock.patch.dict("retrofit.distributed.ddp.model.STRATEGIES", ddp=wrap_ddp, clear=True):
        with pytest.raises(ValueError, match=r"unknown strategy 'fsdp'; use one of: ddp; .*pip install CLONE"):
            distribute_model(Model(), strategy="fsdp")
        assert isinstance(distribute_model(Model()), DDPWrapper)


def test_a_missing_strategy_says_how_to_install_it(ranks):
    ranks(2).run(without_the_kit)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: DataParallel(model),
        lambda model: torch.compile(model, backend="eager"),
        lambda model: torch.compile(DataParallel(model), backend="eager"),
        lambda model: DataParallel(torch.compile(model, backend="eager")),
    ],
    ids=["DataParallel", "compile", "compile(DataParallel)", "DataParallel(compile)"],
)
def test_unwrap_sees_through_every_wrapper(wrap):
    if not hasattr(torch, "compile"):
        pytest.fail("torch.compile is missing")
    model = Model()
    assert unwrap_model(wrap(model)) is model


def test_prefixes_are_stripped_however_many_there_are():
    bare = {"a.weight": 1, "module_list.0": 2}
    assert strip_wrapper_prefixes(bare) == bare
    assert strip_wrapper_prefixes({f"module._orig_mod.{key}": value for key, value in bare.items()}) == bare
    assert strip_wrapper_prefixes({"module.a": 1, "b": 2}) == {"module.a": 1, "b": 2}, "a model's own child `module`"
    assert strip_wrapper_prefixes({}) == {}


# ---- transparent


def transparency():
    module = new_model()
    names, state_names = [name for name, _ in module.named_parameters()], list(module.state_dict())
    buffers = [name for name, _ in module.named_buffers()]
    keys_before = set(vars(module))
    model = DDPWrapper(module)
    assert isinstance(model, DistributedDataParallel) and isinstance(model, DDPWrapper)
    assert unwrap_model(model) is module and model.module is module
    assert model.num_classes == 2 and model.dim == 192 and model.heads is module.heads
    assert not hasattr(model, "no_such_attribute") and str(model) == str(module)
    assert [name for name, _ in model.named_parameters()] == names
    assert [name for name, _ in model.named_buffers()] == buffers
    assert list(model.state_dict()) == state_names
    assert len(list(model.parameters())) == len(names)
    model.temperature = 3.0
    model.dim = 7
    assert module.temperature == 3.0 and module.dim == 7
    model(data()).sum().backward()
    assert set(vars(module)) == keys_before, "DDP wrote its own state into the model"
    model.eval()
    assert not module.training and not module.backbone.training
    model.train()
    assert module.training and module.backbone.training


def test_the_wrapper_is_transparent(ranks):
    ranks(2).run(transparency)


def load_both_ways():
    weights = {key: value + 1 for key, value in new_model().state_dict().items()}
    for state in (weights, {f"module.{key}": value for key, value in weights.items()}):
        model = DDPWrapper(new_model())
        model.load_state_dict(state)
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
        assert isinstance(model, DDPWrapper)


def test_state_loads_with_and_without_prefix(ranks):
    ranks(2).run(load_both_ways)


def replace_layer(name):
    model = DDPWrapper(new_model())
    with pytest.raises(RuntimeError, match=f"model.{name} was replaced after wrapping.*change the model before"):
        setattr(model, name, nn.Linear(4, 2) if name == "backbone" else nn.Parameter(torch.ones(1)))


@pytest.mark.parametrize("name", ["backbone", "scale"])
def test_a_layer_replaced_after_wrapping_is_refused(ranks, name):
    ranks(2).run(replace_layer, name)


def wrap_frozen():
    model = new_model().requires_grad_(False)
    assert wrap_model(model) is model
    wrapped = wrap_model(new_model(), find_unused_parameters=True)
    assert isinstance(wrapped, DDPWrapper) and wrapped.find_unused_parameters
    assert wrap_model(wrapped) is wrapped


def test_a_model_without_trainable_parameters_or_wrapped_already_needs_no_wrapper(ranks):
    ranks(2).run(wrap_frozen)


# ---- gradients


def gradient_of_mean(**options):
    model = wrap_model(new_model(**options).eval().train())
    for layer in unwrap_model(model).modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.eval()  # its statistics are per rank, and not the subject here
    model(data()).mean().backward()
    found = gradients(model)
    assert same_on_all_ranks(found)
    return found


@pytest.mark.parametrize("recompute", [None, "reentrant", "not reentrant"])
def test_gradients_are_those_of_one_process_and_equal_on_all_ranks(ranks, recompute):
    expected = gradient_of_mean()
    for actual in ranks(2).run(recomputed_gradient, recompute):
        for name, gradient in expected.items():
            torch.testing.assert_close(actual[name], gradient, rtol=0, atol=1e-6, msg=name)


def recomputed_gradient(recompute):
    model = wrap_model(new_model(recompute=recompute))
    unwrap_model(model).backbone[1].eval()
    model(data().requires_grad_()).mean().backward()
    assert same_on_all_ranks(gradients(model))
    return gradients(model)


def accumulated():
    model = wrap_model(new_model())
    unwrap_model(model).backbone[1].eval()
    x = data()
    with gradient_sync(model, False):
        (model(x[:2]).sum() / 8).backward()
    local = gradients(model)
    differ = not same_on_all_ranks(local)
    with gradient_sync(model, True):
        (model(x[2:]).sum() / 8).backward()
    assert same_on_all_ranks(gradients(model))
    return differ, gradients(model)


def test_accumulation_communicates_once_and_equals_the_large_batch(ranks):
    expected = gradient_of_mean()
    for differ, actual in ranks(2).run(accumulated):
        assert differ, "gradients were synchronised although the context asked for accumulation only"
        for name, gradient in expected.items():
            torch.testing.assert_close(actual[name], gradient, rtol=0, atol=1e-6, msg=name)


FROZEN = {  # what of `0.weight, 0.bias, 2.weight, 2.bias` is frozen in each step
    "after wrapping": ["", "0", "0", "0"],
    "thawed later": ["0", "0", "", ""],
    "in turns": ["0", "2", "0", "2"],
    "as a whole, for a generator's turn": ["", "02", "", "02"],
}


def weights_after(frozen_by_step):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    freeze(model, frozen_by_step[0])
    calls = []
    model = wrap_model(model)
    model.register_forward_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for frozen in [frozen_by_step[0], *frozen_by_step]:
        freeze(model, frozen)
        optimizer.zero_grad()
        model(data().requires_grad_()).square().mean().backward()
        optimizer.step()
    assert len(calls) == 1 + len(frozen_by_step)
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert same_on_all_ranks(weights)
    return weights


def freeze(model, frozen):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name[0] not in frozen)


@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
def test_parameters_may_be_frozen_and_thawed_after_wrapping(ranks, frozen):
    expected = weights_after(frozen)
    for actual in ranks(2).run(weights_after, frozen):
        for name, weight in expected.items():
            torch.testing.assert_close(actual[name], weight, rtol=0, atol=1e-6, msg=name)


def as_a_sequence():
    layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    model = DDPWrapper(layers)
    assert model[0] is layers[0] and len(model) == 2 and list(model) == list(layers) and model[:1][0] is layers[0]
    assert DDPWrapper(nn.Linear(3, 4)), "a module without a length is true"


def test_layers_of_a_wrapped_sequential_are_reached_by_number(ranks):
    ranks(2).run(as_a_sequence)


# ---- bypassing forward


def bypass(how):
    model = DDPWrapper(new_model())
    x, features = data(), torch.randn(4, 4)
    calls = {
        "method": lambda: model.forward_eval(x),
        "child": lambda: model.backbone(x),
        "ModuleList child": lambda: model.heads[1](features),
        "Sequential child": lambda: model.backbone[0](x),
        "module": lambda: model.module(x),
        "unwrapped": lambda: unwrap_model(model)(x),
    }
    output = calls[how]()  # generated, say, and printed: nothing is trained by it
    with pytest.raises(RuntimeError, match=r"test_parallel.py:\d+: .* outside model\(\.\.\.\).*rd.distribute_model\("):
        output.relu_().sum().backward()
    with torch.no_grad():
        calls[how]()
    model.eval()
    calls[how]()
    model.train()
    model(x).sum().backward()
    copied = copy.deepcopy(unwrap_model(model))  # an EMA or a teacher is a model of its own
    copied.forward_eval(x).sum().backward()
    assert copied.heads[0].weight.grad is not None


@pytest.mark.parametrize("how", ["method", "child", "ModuleList child", "Sequential child", "module", "unwrapped"])
def test_training_past_forward_raises_and_says_what_to_do(ranks, how):
    ranks(2).run(bypass, how)


def run_on_one_rank():
    model = DDPWrapper(convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))))
    statistics = unwrap_model(model)[1].running_mean.clone()
    if get_rank() == 0:
        shape = run_alone(lambda module, x, scale: (module(x) * scale).shape, model, torch.randn(4, 2), scale=2)
        assert shape == (4, 3)
    assert torch.equal(unwrap_model(model)[1].running_mean, statistics) and unwrap_model(model)[1].training
    with pytest.raises(RuntimeError, match="ran in training outside"):
        unwrap_model(model)(torch.randn(4, 2)).sum().backward()
    model(torch.randn(4, 2)).sum().backward()


def printed_by_a_summary():
    model, printed = DDPWrapper(nn.Linear(2, 1)), io.StringIO()
    with contextlib.redirect_stdout(printed):
        run_alone(lambda module: print(type(module).__name__), model)
        print("after")
    return printed.getvalue().split()


def test_rank_0_prints_a_summary(ranks):
    assert ranks(2).run(printed_by_a_summary) == [["Linear", "after"], ["after"]]


def script_on_one_rank(is_training):
    model = DDPWrapper(convert_sync_batchnorm(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh())))
    layer = unwrap_model(model)[1].train(is_training)
    kind = type(layer)
    if get_rank() == 0:
        assert run_alone(torch.jit.script, model)(torch.randn(4, 2)).shape == (4, 3)
    assert type(layer) is kind is not nn.BatchNorm1d and layer.training == is_training
    with pytest.raises(RuntimeError, match="ran in training outside"):
        unwrap_model(model)(torch.randn(4, 2)).sum().backward()


@pytest.mark.parametrize("is_training", [True, False])
def test_one_rank_may_compile_a_model_to_a_file(ranks, is_training):
    ranks(2).run(script_on_one_rank, is_training, timeout_s=120.0)


def test_one_rank_may_run_a_model_for_a_summary(ranks):
    model = nn.Linear(1, 1)
    assert run_alone(lambda module, x: (module, x), model, 3) == (model, 3)
    ranks(2).run(run_on_one_rank, timeout_s=120.0)


def copy_the_wrapper():
    model = DDPWrapper(new_model())
    copied = copy.deepcopy(model)
    assert type(copied) is Model
    assert all(torch.equal(a, b) for a, b in zip(copied.state_dict().values(), model.state_dict().values()))
    assert copied.heads[0].weight is not model.heads[0].weight
    copied(data()).sum().backward()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is Model and list(loaded.state_dict()) == list(model.state_dict())


def test_the_wrapper_itself_can_be_copied(ranks):
    ranks(2).run(copy_the_wrapper)


# ---- evaluation


def uneven_evaluation():
    model = DDPWrapper(new_model())
    model.eval()
    with torch.no_grad():
        num_batches = 0 if get_rank() == 1 else 3
        outputs = [model(data()) for _ in range(num_batches)]
    total = torch.tensor([len(outputs)])
    dist.all_reduce(total)
    return total.item()


def test_ranks_may_evaluate_different_numbers_of_batches(ranks):
    assert ranks(2).run(uneven_evaluation, timeout_s=120.0) == [3, 3]


def buffers_after_broadcast():
    model = DDPWrapper(new_model())
    with torch.no_grad():
        unwrap_model(model).backbone[1].running_mean.fill_(float(get_rank() + 1))
    broadcast_buffers(model)
    return unwrap_model(model).backbone[1].running_mean.tolist()


def test_all_ranks_evaluate_with_the_statistics_of_rank_0(ranks):
    assert ranks(2).run(buffers_after_broadcast) == [[1.0] * 4] * 2


class Positions(nn.Module):
    """With a table of positions as many transformers have it: contiguous, with other strides than a new tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.arange(12.0).reshape(4, 3).unsqueeze(0).transpose(0, 1))
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x + self.table)


def train_with_positions():
    model = distribute_model(Positions())
    for _ in range(2):
        model(torch.ones(4, 2, 3)).sum().backward()
    broadcast_buffers(model)
    assert model.table.flatten().tolist() == list(range(12))


def test_a_buffer_of_any_strides_is_broadcast(ranks):
    ranks(2).run(train_with_positions)
