"""What `retrofit convert` puts into scripts: one call for the model, the loader, the learning rate."""

from __future__ import annotations

import argparse
import logging
import os
import random
from itertools import islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset

import retrofit.distributed as rd
from retrofit.distributed import options as arguments
from retrofit.distributed.data import sharding
from retrofit.distributed.data.sharding import ShardedSampler


@pytest.fixture
def options(monkeypatch):
    """Options as setup_distributed would keep them."""
    monkeypatch.setattr(arguments, "_values", {})
    return arguments._values


def batches(batch_size, batch):
    rd.options._values.update(batch=batch)
    loader = rd.distribute_loader(DataLoader(TensorDataset(torch.arange(32)), batch_size, shuffle=True))
    result = [part.tolist() for (part,) in loader]
    rd.options._values.clear()
    return result


def test_a_global_batch_is_split_across_ranks_and_a_batch_per_rank_is_not(ranks):
    for batch, size in (("global", 4), ("per_gpu", 8)):
        shares = ranks(2).run(batches, 8, batch)
        assert [len(part) for part in shares[0]] == [size] * (32 // (2 * size))
        assert sorted(sample for share in shares for part in share for sample in part) == list(range(32))


def draws():
    torch.manual_seed(5)
    random.seed(5)
    loader = rd.distribute_loader(DataLoader(TensorDataset(torch.arange(4)), 1, shuffle=True))
    before = torch.rand(1).item()
    list(loader)
    found = before, torch.rand(1).item(), random.random()
    state = torch.get_rng_state()
    list(loader)
    assert not torch.equal(torch.get_rng_state(), state)
    return found


def test_ranks_draw_numbers_of_their_own_from_the_first_batch_on(ranks):
    (before, *first), (also_before, *second) = ranks(2).run(draws)
    assert before == also_before
    assert not set(first) & set(second)


def shared_streams(seeds):
    torch.manual_seed(seeds[rd.get_rank()])
    random.seed(seeds[rd.get_rank()])
    rd.share_random_state()
    return torch.rand(1).item(), random.random()


def test_a_script_without_a_seed_continues_with_the_random_streams_of_rank_0(ranks):
    first, second = ranks(2).run(shared_streams, [3, 4])
    assert first == second
    torch.manual_seed(3)
    assert first[0] == torch.rand(1).item()


def kind_of_batchnorm(choice):
    os.environ["RETROFIT_BATCHNORM"] = choice
    try:
        model = rd.distribute_model(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    finally:
        del os.environ["RETROFIT_BATCHNORM"]
    return type(model).__name__, type(rd.unwrap_model(model)[1]).__name__


def test_batchnorm_is_synchronised_unless_it_is_set_to_local(ranks):
    assert ranks(2).run(kind_of_batchnorm, "sync") == [("DDPWrapper", "SynchronisedBatchNorm1d")] * 2
    assert ranks(2).run(kind_of_batchnorm, "local") == [("DDPWrapper", "BatchNorm1d")] * 2
    with pytest.raises(ValueError, match=r"RETROFIT_BATCHNORM='none' is not valid; use one of: sync, local"):
        kind_of_batchnorm("none")


def statistics_in_evaluation():
    os.environ["RETROFIT_BATCHNORM"] = "local"
    try:
        model = rd.distribute_model(nn.BatchNorm1d(1))
    finally:
        del os.environ["RETROFIT_BATCHNORM"]
    model(torch.tensor([[1.0], [2.0]]) * (rd.get_rank() + 1)).sum().backward()
    training = model.running_mean.item()
    model.eval()
    return training, model.running_mean.item()


def test_local_batchnorm_is_that_of_rank_0_in_an_evaluation(ranks):
    (first, own), (second, taken) = ranks(2).run(statistics_in_evaluation)
    assert first != second and own == taken == first


def rates(batch, rule):
    rd.options._values.update(batch=batch, lr_scale=rule)
    try:
        return rd.scaled_lr(0.1), rd.data.micro_batch(12)
    finally:
        rd.options._values.clear()


def test_the_rate_follows_the_batch_of_all_ranks(ranks):
    assert ranks(2).run(rates, "per_gpu", "linear") == [(0.2, 12)] * 2
    assert ranks(2).run(rates, "per_gpu", "none") == [(0.1, 12)] * 2
    assert ranks(2).run(rates, "global", "linear") == [(0.1, 6)] * 2


def shapes(batch, batch_size):
    rd.options._values.update(batch=batch)
    try:
        loader = rd.distribute_loader(DataLoader(TensorDataset(torch.arange(10)), batch_size))
        sizes = [
            (len(x), rd.data.own_batch_size(batch_size), rd.data.own_batch_size(4 * batch_size)) for (x,) in loader
        ]
        return sizes, rd.data.own_batch_size(batch_size)
    finally:
        rd.options._values.clear()


def evaluated_between_steps(batch_size):
    rd.options._values.update(batch="global")
    try:
        for (x,) in rd.distribute_loader(DataLoader(TensorDataset(torch.arange(8.0)), batch_size)):
            with torch.no_grad():
                evaluated = rd.data.own_batch_size(batch_size, torch.zeros(batch_size, 2))
                return evaluated, rd.data.own_batch_size(batch_size, x), rd.data.own_batch_size(batch_size)
    finally:
        rd.options._values.clear()


def test_a_whole_batch_that_is_evaluated_in_a_step_has_its_own_size(ranks):
    assert ranks(2).run(evaluated_between_steps, 4) == [(4, 2, 2)] * 2


def test_the_size_of_an_uneven_last_batch(ranks):
    assert ranks(2).run(shapes, "per_gpu", 4) == [([(4, 4, 16), (1, 1, 16)], 4)] * 2
    assert ranks(2).run(shapes, "global", 4) == [([(2, 2, 8), (2, 2, 8), (1, 1, 8)], 2)] * 2
    assert ranks(3).run(shapes, "per_gpu", 3) == [([(3, 3, 12), (1, 1, 12)], 3)] * 3


def scaled_groups(batch):
    rd.options._values.update(batch=batch, lr_scale="linear")
    try:
        weights = [nn.Parameter(torch.ones(1)) for _ in range(4)]
        optimizer = rd.learning_rate.scale_optimizer(
            torch.optim.Adam([{"params": weights[:1]}, {"params": weights[1:2], "lr": 0.25}])
        )
        optimizer.add_param_group(rd.scaled_lr({"params": weights[2:3]}))
        optimizer.add_param_group(rd.scaled_lr({"params": weights[3:], "lr": 0.5}))
        return [group["lr"] for group in optimizer.param_groups]
    finally:
        rd.options._values.clear()


def test_the_rates_of_all_groups_follow_the_batch_of_all_ranks(ranks):
    assert ranks(2).run(scaled_groups, "per_gpu") == [[0.002, 0.5, 0.002, 1.0]] * 2
    assert ranks(2).run(scaled_groups, "global") == [[0.001, 0.25, 0.001, 0.5]] * 2


@pytest.mark.parametrize(
    ("chosen", "from_outside", "visible"),
    [("0", None, "0,1"), ("0", "4,5", "4,5"), ("2,3", "4,5", "2,3"), ("1,2,3", None, "1,2,3"), ("-1", "4,5", "-1")],
)
def test_gpus_of_the_launcher_replace_a_choice_of_too_few(chosen, from_outside, visible, monkeypatch, capsys):
    if from_outside is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", from_outside)
    rd.devices._notice.cache_clear()
    assert rd.devices.visible_gpus(chosen) == chosen
    for rank in ("0", "1"):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for name, value in {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():
            monkeypatch.setenv(name, value)
        assert rd.devices.visible_gpus(chosen) == visible
        assert ("not enough for 2 processes" in capsys.readouterr().out) is (visible != chosen and rank == "0")


def test_one_process_is_unchanged(options, tmp_path):
    loader, model = DataLoader(TensorDataset(torch.arange(4)), 2), nn.Linear(2, 2)
    assert rd.distribute_loader(loader) is loader and rd.distribute_model(model) is model
    assert rd.scaled_lr(0.3) == 0.3 and rd.data.micro_batch(7) == 7 == rd.data.own_batch_size(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    assert rd.learning_rate.scale_optimizer(optimizer) is optimizer and optimizer.param_groups[0]["lr"] == 0.3
    state = torch.get_rng_state()
    rd.share_random_state()
    assert torch.equal(torch.get_rng_state(), state)
    assert rd.path_on_main(tmp_path) is tmp_path
    rd.output.quiet_logging()
    assert logging.root.manager.disable == 0


def quiet():
    rd.output.quiet_logging()
    try:
        return logging.getLogger("x").isEnabledFor(logging.INFO), rd.path_on_main("log.csv")
    finally:
        logging.disable(logging.NOTSET)


def test_other_ranks_log_nothing_and_write_nowhere(ranks):
    logging.getLogger().setLevel(logging.INFO)
    (_, path), (is_enabled, nowhere) = ranks(2).run(quiet)
    assert path == "log.csv" and nowhere == os.devnull and not is_enabled


def test_flags_leave_no_trace_in_the_options_of_a_script(options):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    rd.add_runtime_flags(parser)
    assert vars(parser.parse_args([])) == {"lr": 0.1}
    assert vars(parser.parse_args(["--batch", "global", "--distributed"])) == {"lr": 0.1}
    assert arguments._values == {"batch": "global", "distributed": True}


@pytest.mark.parametrize("own", ["--batch", "--batch_size"])
def test_flags_and_abbreviations_of_the_script_keep_their_meaning(options, own):
    parser = argparse.ArgumentParser()
    parser.add_argument(own, type=int, dest="size")
    rd.add_runtime_flags(parser)
    assert vars(parser.parse_args(["--batch", "32"])) == {"size": 32}
    parser.parse_args(["--dist_batch", "global"])
    assert arguments._values == {"batch": "global"}


def shard_of(sampler, batch_size, rank):
    """Return the sampler of one of two ranks."""
    shard = ShardedSampler(sampler, batch_size, seed=1)
    shard.rank, shard.world_size = rank, 2
    return shard


def test_an_endless_sampler_is_drawn_from_as_needed():
    sampler = RandomSampler(range(50), replacement=True, num_samples=10**10)
    shares = [shard_of(sampler, 4, rank) for rank in range(2)]
    first, second = (list(islice(iter(share), 100)) for share in shares)
    assert first != second and set(first) | set(second) <= set(range(50))
    assert list(islice(iter(shard_of(sampler, 4, 0)), 100)) == first


def test_a_part_of_a_long_order_has_as_many_samples_on_every_rank(monkeypatch):
    monkeypatch.setattr(sharding, "MOST_INDICES", 10)
    shares = [ShardedSampler(range(27), 4, seed=1, drop_last=True) for _ in range(2)]
    for rank, share in enumerate(shares):
        share.rank, share.world_size = rank, 2
        share.set_epoch(0, 8)
    assert [list(share) for share in shares] == [[8, 10, 12, 14, 16, 18, 20, 22], [9, 11, 13, 15, 17, 19, 21, 23]]


class EndlessSampler(Sampler):
    """One permutation behind the other, from the common stream."""

    def __init__(self, length=2**31):
        self.length = length

    def __iter__(self):
        while True:
            yield from torch.randperm(10).tolist()

    def __len__(self):
        return self.length


@pytest.mark.parametrize("length", [2**31, 10, 0])
def test_an_endless_sampler_keeps_its_order_under_other_random_draws(length):
    def draw(rank, between):
        share = iter(shard_of(EndlessSampler(length), 2, rank))
        return [(next(share), torch.rand(between))[0] for _ in range(25)]

    state = torch.get_rng_state()
    first, second = draw(0, between=1), draw(1, between=3)
    for start in range(0, 25, 5):  # a permutation of 10 is shared out by two
        assert sorted(first[start : start + 5] + second[start : start + 5]) == list(range(10))
    torch.set_rng_state(state)
    list(islice(iter(shard_of(EndlessSampler(length), 2, 0)), 25))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("length", [10, 0])
def test_an_endless_sampler_may_have_any_length(length):
    loader = sharding.shard_loader(DataLoader(range(10), 4, sampler=EndlessSampler(length)), batch_size=4)
    assert len(list(islice(loader, 8))) == 8


def test_several_processes_need_the_process_group(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    for distribute, thing in ((rd.distribute_model, nn.Linear(1, 1)), (rd.distribute_loader, DataLoader([1]))):
        with pytest.raises(RuntimeError, match=r"in one of 4 processes; call setup_distributed\(\) before it"):
            distribute(thing)


def orders():
    loader = rd.distribute_loader(DataLoader(TensorDataset(torch.arange(8)), 2, shuffle=True))
    found = []
    for epoch in (0, 1, 1):
        rd.set_epoch(loader, epoch)
        found.append([batch.tolist() for (batch,) in loader])
    return found


def test_the_number_of_the_epoch_chooses_the_order(ranks):
    for first, second, again in ranks(2).run(orders):
        assert first != second == again
    rd.set_epoch(DataLoader([1]), 1)


def loader_of_each_epoch():
    torch.manual_seed(0)
    orders, draws = [], []
    for _ in range(3):
        loader = rd.distribute_loader(DataLoader(TensorDataset(torch.arange(8)), 2, shuffle=True))
        orders.append([int(number) for (batch,) in loader for number in batch])
        draws.append(torch.rand(()).item())
    return orders, draws


def test_loaders_built_in_each_epoch_have_new_orders_and_random_numbers(ranks):
    (first, own), (second, others) = ranks(2).run(loader_of_each_epoch)
    for one, other in zip(first, second):
        assert sorted(one + other) == list(range(8))
    assert len({tuple(order) for order in first}) == 3
    assert len({*own, *others}) == 6


def test_a_model_that_the_options_exclude_is_not_wrapped():
    assert rd.distribute_model(None) is None
