"""Ranks that drift apart are stopped; trainings that are right are not, on real ranks."""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Normal

import retrofit.distributed as rd
from retrofit.distributed import get_rank
from retrofit.distributed.ddp import consistency
from retrofit.distributed.process.options import CONSISTENCY, read_twin

DIFFER = r"the ranks have different parameters: '(\S+)' is the first of \d+ of \d+ tensors of \w+ that differ"


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x))


def batch(step=0, num=4, width=3):
    """This rank's half of a common batch; outside a group the whole."""
    x = torch.randn(2 * num, width, generator=torch.Generator().manual_seed(step))
    return x[get_rank() * num : (get_rank() + 1) * num] if rd.process_group.is_distributed() else x


def model_and_optimizer(make=Net, **options):
    torch.manual_seed(0)
    model = rd.strategies.select.wrap_model(make())
    options = {"lr": 0.1, "momentum": 0.9, **options}
    return model, torch.optim.SGD(model.parameters(), **options)


def with_choice(choice, task, *args):
    os.environ["RETROFIT_CONSISTENCY"] = choice
    try:
        return task(*args)
    finally:
        del os.environ["RETROFIT_CONSISTENCY"]


# ---- faults


def reinitialised():
    model, optimizer = model_and_optimizer()
    torch.manual_seed(get_rank())
    nn.init.normal_(model.body[2].weight)
    return model, lambda step: one_step(model, optimizer, step)


def one_step(model, optimizer, step, change=lambda loss: True):
    optimizer.zero_grad()
    loss = model(batch(step)).square().mean()
    loss.backward()
    if change(loss.item()) is not False:
        optimizer.step()


def stepped_by_own_decision():
    model, optimizer = model_and_optimizer()
    return model, lambda step: one_step(model, optimizer, step, lambda loss: get_rank() == step % 2)


def gradient_edited_by_own_data():
    model, optimizer = model_and_optimizer()

    def clip(loss):
        model.head.weight.grad *= 1.0 if get_rank() else 0.5

    return model, lambda step: one_step(model, optimizer, step, clip)


def optimizer_state_on_one_rank():
    model, optimizer = model_and_optimizer()
    one_step(model, optimizer, 0)
    state = optimizer.state_dict()
    model, optimizer = model_and_optimizer()
    if get_rank() == 0:
        optimizer.load_state_dict(state)
    return model, lambda step: one_step(model, optimizer, step)


def checkpoint_on_one_rank():
    model, optimizer = model_and_optimizer()
    if get_rank() == 1:
        model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})
    return model, lambda step: one_step(model, optimizer, step)


def frozen_part_differs():
    model, optimizer = model_and_optimizer()
    model.body[0].requires_grad_(False)
    with torch.no_grad():
        model.body[0].weight += get_rank()
    return model, lambda step: one_step(model, optimizer, step)


def parameters_changed_by_hand():
    model, _ = model_and_optimizer()

    def step_by_hand(step):
        model(batch(step)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * (parameter.grad + 0.01 * get_rank())

    return model, step_by_hand


def swapped_entries():
    model, optimizer = model_and_optimizer()
    if get_rank():  # the same values, in other places
        model.head.weight.data.copy_(model.head.weight.data.flip(1))
    return model, lambda step: one_step(model, optimizer, step, lambda loss: model.zero_grad())


FAULTS = {
    reinitialised: "body.2.weight", stepped_by_own_decision: "body.0.weight", swapped_entries: "head.weight",
    gradient_edited_by_own_data: "head.weight", optimizer_state_on_one_rank: "body.0.weight",
    checkpoint_on_one_rank: "body.0.weight", frozen_part_differs: "body.0.weight",
    parameters_changed_by_hand: "body.0.weight",
}  # fmt: skip


def error_of(make):
    model, step = make()
    if make is frozen_part_differs:
        step = unwatched_freezing(model, step)
    for number in range(12):
        try:
            step(number)
        except RuntimeError as error:
            return number, str(error)
    return 12, ""


def unwatched_freezing(model, step):
    """DDP gives all ranks rank 0's weights when it is told of a freezing; then make them differ again."""

    def differ(number):
        if number == 1:
            with torch.no_grad():
                model.body[0].weight += get_rank()
        step(number)

    return differ


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_ranks_that_drift_apart_are_stopped_with_the_name_of_the_tensor(ranks, fault):
    for number, message in ranks(2).run(error_of, fault):
        assert number <= 10 and "\n" not in message
        assert message.startswith(f"the ranks have different parameters: {FAULTS[fault]!r} is the first of "), message
        assert "probable causes" in message and "RETROFIT_CONSISTENCY=off" in message
        assert ("took no optimizer step" in message) is (fault is stepped_by_own_decision)


def late_fault(choice):
    def train():
        model, optimizer = model_and_optimizer()
        for step in range(60):
            if step == 30 and get_rank():
                model.head.bias.data += 1e-4
            try:
                one_step(model, optimizer, step)
            except RuntimeError as error:
                return step, "norms by rank" in str(error)
        return None

    return with_choice(choice, train)


def test_the_option_sets_how_often_ranks_are_compared(ranks):
    assert ranks(2).run(late_fault, "always") == [(31, True)] * 2
    assert ranks(2).run(late_fault, "first") == [(49, True)] * 2
    assert ranks(2).run(late_fault, "off") == [None] * 2
    with pytest.raises(ValueError, match="RETROFIT_CONSISTENCY='never' is not valid; use one of: off, first, always"):
        with_choice("never", read_twin, CONSISTENCY)


def other_choice_per_rank():
    with pytest.raises(ValueError, match=r"RETROFIT_CONSISTENCY is '\w+' on rank \d and another on other ranks"):
        with_choice(("off", "first")[get_rank()], model_and_optimizer)


def test_ranks_with_different_options_get_an_error_at_once(ranks):
    ranks(2).run(other_choice_per_rank)


# ---- several backward passes of one forward


class TwoParts(nn.Module):
    """Returns what a codebook loss and a GAN loss are computed from, in an object of its own."""

    @dataclass
    class Output:
        codes: torch.Tensor
        image: dict
        label: str = "x"

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x):
        codes = self.encoder(x).tanh()
        return self.Output(codes, {"mean": [self.decoder(codes)]})


def two_passes(kind):
    model, optimizer = model_and_optimizer(TwoParts)
    for step in range(4):
        optimizer.zero_grad()
        x = batch(step)
        out = model(x)
        first, second = out.codes.square().mean() + out.image["mean"][0].mean(), (out.image["mean"][0] - x).abs().mean()
        if kind == "dropped between":  # vq_loss.backward(retain_graph=True); optimizer.zero_grad(); gan_loss.backward()
            first.backward(retain_graph=True)
            optimizer.zero_grad()
            second.backward()
        elif kind == "added":
            first.backward(retain_graph=True)
            second.backward()
        elif kind == "two forwards first":
            later = model(x + 1).image["mean"][0].square().mean()
            (first + second).backward()
            later.backward()
        elif kind == "adaptive weight":
            last = model.decoder.weight
            norms = [torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in (first, second)]
            norms = [norm.detach() for norm in norms]
            total = torch.stack(norms)
            if rd.process_group.is_distributed():
                dist.all_reduce(total)
            (first + second * total[0] / total[1]).backward()
            return gradients(model)
        elif kind == "penalty":
            point = x.clone().requires_grad_()
            score = model(point).image["mean"][0].square().mean(1).sum()
            (slope,) = torch.autograd.grad(score, point, create_graph=True)
            (slope.norm(dim=1) - 1).square().mean().backward(retain_graph=True)
            (first + second).backward()
        optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


KINDS = ["dropped between", "added", "two forwards first", "penalty"]


def all_kinds_of_passes():
    return {kind: with_choice("always", two_passes, kind) for kind in KINDS}


def test_gradients_of_every_backward_pass_are_averaged(ranks):
    expected = {kind: two_passes(kind) for kind in KINDS}
    first, second = ranks(2).run(all_kinds_of_passes)
    for kind in KINDS:
        for name, weight in expected[kind].items():
            torch.testing.assert_close(first[kind][name], weight, rtol=0, atol=1e-6, msg=f"{kind}: {name}")
            assert torch.equal(first[kind][name], second[kind][name]), (kind, name)


def gradients_by_hand():
    """Calls of autograd.grad in different numbers per rank do not meet in anything."""
    model, optimizer = model_and_optimizer()
    for step in range(4):
        for _ in range(get_rank()):
            x = batch(step).requires_grad_()
            torch.autograd.grad(model(x).sum(), x)
        one_step(model, optimizer, step)
    return gradients(model)


def test_a_rank_may_look_at_gradients_alone(ranks):
    first, second = ranks(2).run(gradients_by_hand, timeout_s=60.0)
    assert all(torch.equal(first[name], second[name]) for name in first)


# ---- sound trainings


def gan():
    generator, opt_g = model_and_optimizer(lambda: Net(6))
    discriminator, opt_d = model_and_optimizer(lambda: nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)))
    for step in range(6):
        fake = generator(batch(step))
        opt_d.zero_grad()
        (discriminator(torch.ones(2, 1)).mean() - discriminator(fake.detach()).mean()).backward()
        opt_d.step()
        discriminator.requires_grad_(step % 2 == 1)
        opt_g.zero_grad()
        discriminator(fake).mean().backward()
        opt_g.step()
        discriminator.requires_grad_(True)


def accumulation_without_no_sync():
    model, optimizer = model_and_optimizer()
    for step in range(24):
        model(batch(step)).square().mean().backward()
        if step % 12 == 11:
            optimizer.step()
            optimizer.zero_grad()


def accumulation_with_no_sync():
    model, optimizer = model_and_optimizer()
    for step in range(12):
        with rd.strategies.gradient_sync(model, step % 3 == 2):
            model(batch(step)).square().mean().backward()
        if step % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def weights_perturbed_by_each_rank():
    """SAM climbs by this rank's own gradient, then descends from there by the gradient of all."""
    model, optimizer = model_and_optimizer()
    for step in range(5):
        optimizer.zero_grad()
        with model.no_sync():
            model(batch(step)).square().mean().backward()
        with torch.no_grad():
            moves = [0.05 * parameter.grad for parameter in model.parameters()]
            for parameter, move in zip(model.parameters(), moves):
                parameter += move
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        with torch.no_grad():
            kept = [parameter.grad for parameter in model.parameters()]
            for parameter, move, grad in zip(model.parameters(), moves, kept):
                parameter -= move
                parameter.data = parameter.data.double().sub(0).float()
                parameter.grad = grad
            for parameter in model.parameters():
                dist.broadcast(parameter.data, 0)  # rounding of the way there and back is the rank's own
        optimizer.step()


def average_weights_and_evaluation():
    model, optimizer = model_and_optimizer()
    ema = copy.deepcopy(rd.unwrap_model(model))
    for step in range(5):
        one_step(model, optimizer, step)
        with torch.no_grad():
            for slow, fast in zip(ema.parameters(), model.parameters()):
                slow.lerp_(fast, 0.1)
        model.eval()
        with torch.no_grad():
            for _ in range(get_rank() * 3):
                model(batch(step)), ema(batch(step))
        if get_rank() == 0:  # a rank may evaluate with other weights, and put them back
            kept = copy.deepcopy(model.state_dict())
            model.load_state_dict(ema.state_dict())
            model.load_state_dict(kept)
        model.train()


def not_a_number():
    model, optimizer = model_and_optimizer()
    for step in range(5):
        one_step(model, optimizer, step)
        if step == 1:
            bits = torch.tensor([0x7FC00000 + get_rank()], dtype=torch.int32)
            model.head.bias.data.copy_(bits.view(torch.float32))
            model.head.weight.data.fill_(float("nan"))


def scaler_that_skips():
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) if hasattr(torch, "amp") else None
    for step in range(8):
        optimizer.zero_grad()
        factor = float("inf") if step in (1, 2, 5) and get_rank() == 0 else 1.0
        scaler.scale(model(batch(step)).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()


def frozen_and_thawed():
    model, optimizer = model_and_optimizer()
    for step in range(6):
        model.body[0].requires_grad_(step > 2)
        one_step(model, optimizer, step)


def compiled():
    torch.manual_seed(0)
    model = rd.strategies.select.wrap_model(torch.compile(Net(), backend="eager"))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        one_step(model, optimizer, step)


class Uncertain(Net):
    def forward(self, x):
        return Normal(super().forward(x), 1.0), None, [x, "text"], {"n": 3}


def other_outputs():
    model, optimizer = model_and_optimizer(Uncertain)
    for step in range(4):
        optimizer.zero_grad()
        found, nothing, (x, text), number = model(batch(step))
        assert (nothing, text, number) == (None, "text", {"n": 3})
        found.loc += 1  # what a script may do to an output in place
        (-found.log_prob(x[:, :1])).mean().backward()
        optimizer.step()


def clusters_of_each_rank():
    """What a rank optimizes for itself, a perturbation, is not a model that ranks share."""
    model, optimizer = model_and_optimizer()
    for step in range(4):
        delta = torch.zeros(4, 3, requires_grad=True)
        own = torch.optim.SGD([delta], lr=1.0)
        own.zero_grad()
        model.eval()
        (-model(batch(step) + delta).square().mean()).backward()
        own.step()
        model.train()
        one_step(model, optimizer, step)


SOUND = [
    gan, accumulation_without_no_sync, accumulation_with_no_sync, weights_perturbed_by_each_rank,
    average_weights_and_evaluation, not_a_number, scaler_that_skips, frozen_and_thawed, other_outputs,
    clusters_of_each_rank,
]  # fmt: skip


def sound_trainings(choice):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for train in SOUND:
            with_choice(choice, train)


@pytest.mark.parametrize("choice", ["first", "always"])
def test_a_correct_training_is_not_stopped(ranks, choice):
    ranks(2).run(sound_trainings, choice, timeout_s=120.0)


def test_a_compiled_model_is_compared_too(ranks):
    ranks(2).run(compiled, timeout_s=120.0)


# ---- what no wrapper synchronises


def second_network_alone():
    consistency._warn_of_alone.cache_clear()
    consistency._alone.clear()
    model, optimizer = model_and_optimizer()
    alone = nn.Linear(1, 1)
    own = torch.optim.Adam(alone.parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(6):
            optimizer.zero_grad()
            alone(model(batch(step))).square().mean().backward()
            optimizer.step()
            own.step()
    return [str(warning.message) for warning in caught if "no wrapper" in str(warning.message)]


def test_a_network_that_was_not_wrapped_is_named_in_a_warning(ranks):
    (message,), nothing = ranks(2).run(second_network_alone)
    assert "Adam with 2 parameter(s), the first of shape (1, 1)" in message and "distribute_model" in message
    assert nothing == []


def layer_left_out(is_same):
    consistency._left_out.clear()
    model, _ = model_and_optimizer()
    torch.manual_seed(1)
    left_out = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *left_out.parameters()], lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        inputs = torch.ones(2, 1) if is_same else torch.ones(2, 1) * (rd.get_rank() + 1)
        (model(batch(step)).square().mean() + left_out(inputs).square().mean()).backward()
        optimizer.step()


def test_a_layer_that_was_left_out_of_an_optimizers_model_stops_the_training(ranks):
    with pytest.raises(Exception, match=r"in no wrapped model: SGD with 2 parameter\(s\), the first of shape \(1, 1\)"):
        ranks(2).run(layer_left_out, False)


def test_a_layer_that_was_left_out_but_stays_equal_does_not_stop_the_training(ranks):
    ranks(2).run(layer_left_out, True)
