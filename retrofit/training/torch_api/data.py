"""Data loaders, samplers and data sets of torch, and the functions that go through them."""

from __future__ import annotations

import re

from . import runtime
from .output import COUNTING_BARS, PROGRESS_BARS

# Loaders, with those that other libraries derive from torch's, and the parameters of torch's in their order.
# Packages of data sets, and of what gives batches of them.
DATA_PACKAGES = ("torch.utils.data.", "torchvision.datasets.", "torchaudio.datasets.", "torchtext.", "datasets.")
LOADERS = frozenset(
    {
        "torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader",
        "torch_geometric.loader.DataLoader", "torch_geometric.loader.dataloader.DataLoader",
        "torch_geometric.data.DataLoader", "monai.data.DataLoader", "monai.data.dataloader.DataLoader",
    }
)  # fmt: skip
# Those whose batches are graphs, with a row for each node; what makes a row for each graph of these.
GRAPH_LOADERS = frozenset({
    "torch_geometric.loader.DataLoader", "torch_geometric.loader.dataloader.DataLoader",
    "torch_geometric.data.DataLoader",
})  # fmt: skip
ROWS_OF_GRAPHS = frozenset({"num_nodes", "num_edges"})  # how many a batch of graphs has
OF_GRAPHS = re.compile(r"readout|pool|set2set", re.IGNORECASE)
LOADER_PARAMETERS = ["dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers"]
# What makes an object that has what it is given as an attribute of the same name.
KEPT_ARGUMENTS = {
    **{loader: LOADER_PARAMETERS for loader in LOADERS},
    "torch.utils.data.Subset": ["dataset", "indices"],
    "torch.utils.data.dataset.Subset": ["dataset", "indices"],
}
# Samplers that give each rank its part, and their parameters in their order.
SHARDING_SAMPLERS = frozenset(
    {"torch.utils.data.distributed.DistributedSampler", "torch.utils.data.DistributedSampler"}
)
SHARDING_PARAMETERS = ["dataset", "num_replicas", "rank", "shuffle", "seed", "drop_last"]
SHARDING_SIZES = frozenset({"total_size", "num_samples"})  # attributes: with the samples that fill the last part up
# Samplers that choose among the samples, those in the order of the data set, and the base of all.
CHOOSING_SAMPLERS = frozenset(
    f"torch.utils.data.{module}{name}"
    for module in ("", "sampler.")
    for name in ("WeightedRandomSampler", "SubsetRandomSampler")
)
SAMPLERS_IN_ORDER = (".SequentialSampler", ".BatchSampler")
SAMPLER_BASES = frozenset({"torch.utils.data.Sampler", "torch.utils.data.sampler.Sampler"})
# Splits of a data set at random; the third argument is a generator.
RANDOM_SPLITS = frozenset({"torch.utils.data.random_split", "torch.utils.data.dataset.random_split"})
WORKER_INFO = "torch.utils.data.get_worker_info"
# Methods of a data set that read a sample, or change one.
PER_SAMPLE = ("__getitem__", "__iter__", "forward")

# Functions that give what their first argument holds, one by one: the argument itself, or another view of it.
SAME_ITERABLE = PROGRESS_BARS | {"iter", "reversed", runtime.SCALE_OPTIMIZER, runtime.DISTRIBUTE_MODELS}
SAME_ELEMENTS = (SAME_ITERABLE - {"reversed"}) | {"enumerate", "list", "tuple"}
ITERATORS = PROGRESS_BARS | {"enumerate"}  # made to be gone through
# Methods by which anything gives what it holds, but samples.
NOT_SAMPLES = frozenset(
    {"parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children", "keys",
     "values", "items"}
)  # fmt: skip
BATCH_SAMPLER = "torch.utils.data.BatchSampler"
ENDLESS = frozenset({"itertools.cycle"})
COMBINES = frozenset({"zip", "itertools.zip_longest", "itertools.chain", "itertools.chain.from_iterable"})
TAKES_FUNCTION = frozenset({"map", "filter", "itertools.islice", "itertools.starmap", "itertools.takewhile"})
STREAM_PACKAGE = "webdataset"  # its streams split their files over workers and ranks by themselves
SPLITS_FILES = frozenset({"nodesplitter", "resampled"})  # arguments that say how
# What makes loaders in packages that are not known here, by its name: create_loader, BucketIterator.splits.
LOOKS_LIKE_LOADER = re.compile(r"loader|iterator", re.IGNORECASE)
NUMBERS = frozenset({"range", "itertools.count"}) | COUNTING_BARS  # 0, 1, 2, ...
ITERABLE_PARAMETERS = ("iterable", "sequence")  # how progress bars call their first parameter
# Attributes of a batch of graphs (torch_geometric): how many it has of something.
GRAPH_COUNTS = frozenset({"num_graphs", "num_nodes", "num_edges"})
