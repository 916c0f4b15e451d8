"""Which parts of a model count as its layers."""

from __future__ import annotations

import pytest
from strategy_training import Transformer
from torch import nn

from retrofit.distributed.strategies.layers import choose_layers


class Pair(nn.Sequential):
    """A Sequential with a forward of its own, which is called."""

    def forward(self, x):
        return super().forward(x)


def names_of(model, layers):
    names = {id(module): name for name, module in model.named_modules()}
    return [names[id(layer)] for layer in layers]


def test_layers_of_a_class_are_listed_inner_ones_first():
    model = Transformer()
    assert names_of(model, choose_layers(model, ["Block"])) == ["blocks.0", "blocks.1"]
    found = names_of(model, choose_layers(model, ["Block", "MultiheadAttention"]))
    assert found == ["blocks.0.attention", "blocks.0", "blocks.1.attention", "blocks.1"]


def test_by_size_a_layer_has_enough_parameters_outside_its_inner_layers():
    model = nn.Sequential(Pair(nn.Linear(10, 10), nn.Linear(10, 10)), nn.Linear(10, 30), nn.Linear(2, 2))
    assert names_of(model, choose_layers(model, min_num_params=100)) == ["0.0", "0.1", "1"]
    assert names_of(model, choose_layers(model, min_num_params=200)) == ["0", "1"]
    assert names_of(model, choose_layers(model, min_num_params=1e6)) == []
    # A model may go through a Sequential without calling it, as torchvision's users of `features` do.
    model[0] = nn.Sequential(*model[0])
    assert names_of(model, choose_layers(model, min_num_params=200)) == ["1"]


def test_containers_and_parts_with_tied_weights_are_not_layers():
    model = Transformer()
    assert "blocks" not in names_of(model, choose_layers(model, min_num_params=1))
    assert not {"embedding", "classifier"} & set(names_of(model, choose_layers(model, min_num_params=1)))


def test_a_class_that_the_model_lacks_is_refused():
    with pytest.raises(ValueError, match=r"no layer of class BertLayer; the model has Block, .*ModuleList"):
        choose_layers(Transformer(), ["BertLayer", "Block"])
