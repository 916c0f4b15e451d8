"""BatchNorm over the global batch equals nn.BatchNorm on the whole batch."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from retrofit.distributed import get_rank, get_world_size
from retrofit.distributed.collectives import gather_objects
from retrofit.distributed.ddp.sync_batchnorm import CPUSyncBatchNorm, convert_sync_batchnorm

SIZES = {2: (1, 5), 3: (4, 1, 3)}  # samples per rank, uneven


def layer(**options):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, **options)
    if norm.affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return norm


def steps(norm, world_size, dtype, part=slice(None)):
    """Run two training steps on (a part of) the common batches; return all that must be equal."""
    generator = torch.Generator().manual_seed(3)
    total = sum(SIZES[world_size])
    for _ in range(2):
        x = (torch.randn(total, 4, 3, 2, generator=generator, dtype=torch.float64) * 3 + 10).to(dtype)[part]
        weights = torch.randn(total, 4, 3, 2, generator=generator, dtype=torch.float64)[part]
        x.requires_grad_()
        output = norm(x)
        (output.double() * weights).sum().backward()
    running = [] if norm.running_mean is None else [norm.running_mean, norm.running_var, norm.num_batches_tracked]
    own = [parameter.grad for parameter in norm.parameters()]
    return output.detach(), x.grad, own, [value.clone() for value in running]


def synchronised(world_size, options, dtype):
    norm = convert_sync_batchnorm(layer(**options).to(torch.float64 if dtype == torch.float64 else torch.float32))
    assert isinstance(norm, CPUSyncBatchNorm)
    start = sum(SIZES[world_size][: get_rank()])
    return steps(norm, world_size, dtype, slice(start, start + SIZES[world_size][get_rank()]))


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.3, "eps": 0.1}],
    ids=str,
)
def test_uneven_ranks_equal_one_process_with_the_whole_batch(ranks, world_size, options):
    expected_output, expected_gradient, expected_own, expected_running = steps(
        layer(**options), world_size, torch.float32
    )
    results = ranks(world_size).run(synchronised, world_size, options, torch.float32)
    close = dict(rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat([output for output, *_ in results]), expected_output, **close)
    torch.testing.assert_close(torch.cat([gradient for _, gradient, *_ in results]), expected_gradient, **close)
    for number, expected in enumerate(expected_own):
        torch.testing.assert_close(sum(own[number] for _, _, own, _ in results), expected, rtol=1e-5, atol=1e-4)
    for *_, running in results:
        for value, expected in zip(running, expected_running):
            torch.testing.assert_close(value, expected, **close)


def test_float64_keeps_its_precision(ranks):
    expected_output, expected_gradient, *_ = steps(layer().double(), 2, torch.float64)
    results = ranks(2).run(synchronised, 2, {}, torch.float64)
    close = dict(rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([output for output, *_ in results]), expected_output, **close)
    torch.testing.assert_close(torch.cat([gradient for _, gradient, *_ in results]), expected_gradient, **close)


def test_bf16_input_has_float32_statistics(ranks):
    expected_output, *_, expected_running = steps(layer(), 2, torch.float32)
    results = ranks(2).run(synchronised, 2, {}, torch.bfloat16)
    for output, _, _, running in results:
        assert output.dtype == torch.bfloat16
        for value, expected in zip(running, expected_running):
            assert value.dtype == expected.dtype
            torch.testing.assert_close(value, expected, rtol=1e-2, atol=2e-2)
    together = torch.cat([output for output, *_ in results]).float()
    torch.testing.assert_close(together, expected_output, rtol=2e-2, atol=6e-2)


def gradcheck():
    norm = convert_sync_batchnorm(nn.BatchNorm1d(2).double())
    x = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)

    # The same batch on both ranks, so that moving an input moves both: d(sum of both outputs) = this rank's part of it.
    def doubled(values):
        return norm(values)

    torch.manual_seed(0)
    return torch.autograd.gradcheck(doubled, (x,), nondet_tol=0.0)


def test_gradients_pass_gradcheck(ranks):
    assert ranks(2).run(gradcheck) == [True, True]


def convert_model():
    torch.manual_seed(get_rank())
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ModuleDict({"norm": nn.BatchNorm2d(4)}), nn.BatchNorm1d(4))
    parameters, names = list(model.parameters()), list(model.state_dict())
    converted = convert_sync_batchnorm(model.eval())
    assert converted is model and list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters)), "an optimizer would hold the old ones"
    assert sum(isinstance(module, CPUSyncBatchNorm) for module in model.modules()) == 2
    assert not any(module.training for module in model.modules())
    again = [id(module) for module in convert_sync_batchnorm(model).modules()]
    assert again == [id(module) for module in model.modules()]


def test_conversion_keeps_names_parameters_and_mode(ranks):
    ranks(2).run(convert_model)


def pickled_model():
    import retrofit.distributed as rd

    torch.manual_seed(0)
    model = rd.distribute_model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Unflatten(1, (4, 1))))
    model(torch.randn(3, 4)).sum().backward()
    data = io.BytesIO()
    torch.save(model, data)
    loaded = torch.load(io.BytesIO(data.getvalue()), weights_only=False)
    copied = copy.deepcopy(model)
    same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values()))
    return b"retrofit" in data.getvalue(), same, type(loaded[1]).__name__, type(copied[1]).__name__


def test_a_pickled_model_needs_nothing_of_the_runtime(ranks):
    assert ranks(2).run(pickled_model) == [(False, True, "BatchNorm1d", "SynchronisedBatchNorm1d")] * 2


def evaluate_one_rank_alone():
    norm = convert_sync_batchnorm(layer()).eval()
    x = torch.randn(2, 4, 3, 3)
    if get_rank() == 0:
        torch.testing.assert_close(norm(x), layer().eval()(x))
    return len(gather_objects(None))


def test_evaluation_needs_no_other_rank(ranks):
    assert ranks(2).run(evaluate_one_rank_alone, timeout_s=120.0) == [2, 2]


def test_outside_a_group_the_model_stays_as_it_is():
    model = nn.Sequential(nn.BatchNorm2d(4))
    norm = model[0]
    assert convert_sync_batchnorm(model) is model and model[0] is norm
    lone = CPUSyncBatchNorm(4)
    x = torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(lone(x), nn.BatchNorm2d(4)(x))


def wrong_shape():
    try:
        convert_sync_batchnorm(nn.BatchNorm1d(4))(torch.randn(4))
    except ValueError as error:
        return str(error)
    return ""


def test_a_wrong_shape_is_refused(ranks):
    for text in ranks(2).run(wrong_shape):
        assert "(N, C, ...), got 1 dimension" in text


class NormAndRelu(nn.BatchNorm2d):
    def forward(self, input):
        return super().forward(input).relu()


def refused(has_gpu):
    replaced = nn.BatchNorm2d(4)
    replaced.forward = torch.relu
    messages = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: has_gpu)
        for layer in (NormAndRelu(4), replaced):
            with pytest.raises(ValueError) as error:
                convert_sync_batchnorm(nn.Sequential(nn.Conv2d(3, 4, 1), layer))
            messages.append(str(error.value))
    return messages


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_layer_with_a_forward_of_its_own_is_refused(ranks, has_gpu):
    for messages in ranks(2).run(refused, has_gpu):
        for message, kind in zip(messages, ("NormAndRelu", "BatchNorm2d")):
            assert message.startswith(f"1 is a BatchNorm layer with a forward of its own ({kind})")
            assert "RETROFIT_BATCHNORM=local" in message and "sync_batchnorm=False" in message


def own_forward_kept():
    import retrofit.distributed as rd

    model = rd.distribute_model(nn.Sequential(nn.Conv2d(3, 4, 1), NormAndRelu(4)), sync_batchnorm=False)
    return bool((model(torch.randn(2, 3, 2, 2)) >= 0).all())


def test_a_layer_with_a_forward_of_its_own_keeps_it_without_synchronisation(ranks):
    assert ranks(2).run(own_forward_kept) == [True, True]


class Frozen(nn.BatchNorm2d):
    """A layer of a project's own class."""


def freeze_and_set_momentum():
    model = nn.Sequential(nn.BatchNorm2d(4), Frozen(4), nn.Flatten(), nn.BatchNorm1d(16))
    convert_sync_batchnorm(model)
    for layer in model.modules():
        if isinstance(layer, Frozen):
            layer.eval()
        elif isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            layer.momentum = 0.5
    before = model[1].running_mean.clone()
    model(torch.randn(3, 4, 2, 2) + get_rank())
    means = [model[index].running_mean for index in (0, 3)]
    same = [torch.equal(*gather_objects(mean)) for mean in means]
    return torch.equal(before, model[1].running_mean), bool(means[0].abs().max() > 0.05), same


def test_a_layer_stays_an_instance_of_its_class(ranks):
    assert ranks(2).run(freeze_and_set_momentum) == [(True, True, [True, True])] * 2


class NormAct(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: its own call of batch_norm, then an activation."""

    __module__ = "timm.layers.norm_act"

    def forward(self, input):
        uses_batch = self.training or self.running_mean is None
        momentum = self.momentum
        if self.training:
            self.num_batches_tracked.add_(1)
        output = nn.functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, uses_batch, momentum, self.eps
        )
        return output.relu()


def with_activation():
    part = {1: slice(0, 6), 2: (slice(0, 2), slice(2, 6))[get_rank()]}[get_world_size()]
    torch.manual_seed(0)
    data = torch.randn(6, 3, 2, 2).double().requires_grad_()
    model = nn.Sequential(nn.Conv2d(3, 4, 1), NormAct(4)).double()
    model = convert_sync_batchnorm(model)
    output = model(data[part]).square().sum()
    output.backward()
    copied = copy.deepcopy(model).eval()
    with torch.no_grad():
        evaluated = copied(data)
    return data.grad, model[1].weight.grad, model[1].running_var, evaluated


def test_a_layer_of_timm_is_synchronised_through_its_own_forward(ranks):
    gradient, weight, variance, evaluated = with_activation()
    first, second = ranks(2).run(with_activation)
    torch.testing.assert_close(first[0] + second[0], gradient)
    torch.testing.assert_close(first[1] + second[1], weight)
    for found in (first, second):
        torch.testing.assert_close(found[2], variance)
        torch.testing.assert_close(found[3], evaluated)
