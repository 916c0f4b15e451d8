"""The kinds of refusals: why a training cannot be converted, and what to do; shown by `retrofit rules CODE`.

The text of a refusal names what was found in the script; its kind says what all such scripts have in common.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE = "docs/refusals.md"


@dataclass(frozen=True)
class Kind:
    """One kind of refusals of a rule.

    `is_local`: only what runs at this place is wrong in several processes. Where the training can do without it, the
    place is converted to an error at run time, which comes in several processes only. `examples`: sections of PAGE.
    `assumption`: where the refusal is one because something cannot be told, what makes the conversion right without
    any edit here; `convert --prove` converts under it, and a run shows whether it holds.
    """

    code: str
    name: str  # of the hazard
    why: str
    remedy: str
    is_local: bool = False
    examples: tuple[str, ...] = ()
    assumption: str = ""


_ALL = (
    Kind(
        "RF003",
        "framework",
        "A framework owns the training loop, and distributes it by its own settings.",
        "Start it by the command of the framework that the refusal names; nothing has to be converted.",
    ),
    Kind(
        "RF003",
        "distributed-already",
        "The script makes its own process group, wrapper or shards; a second one would work against these.",
        "Start it as it is with torchrun, and let `retrofit check` and `retrofit verify` look for mistakes.",
    ),
    Kind(
        "RF003",
        "no-training",
        "No loop with a backward call was found, so there is nothing to distribute.",
        "Name the script that trains; a call that is found by its name at run time only has to be written out.",
    ),
    Kind(
        "RF003",
        "no-loader",
        "The batches come from the script itself and not from a DataLoader, and which rows of them are samples, or "
        "whether all ranks would draw the same, cannot be told for certain.",
        "Give each rank its part of the batch; the examples show the few lines for each way to draw.",
        examples=("full-batch", "reinforcement-learning"),
    ),
    Kind(
        "RF003",
        "one-sample",
        "The data set has one sample, as one image of which a network learns the points: every process would train on "
        "all of it, at a learning rate for as many samples as there are processes.",
        "Split what is in the sample: each rank takes every N-th of its points, `x[:, rd.get_rank() :: "
        "rd.get_world_size()]`, and its loss is weighted by their number.",
        examples=("full-batch",),
    ),
    Kind(
        "RF003",
        "unknown-iterator",
        "The loss is also computed from what the iterator of a library gives, next to the batches of a DataLoader: "
        "every process may be given the same samples.",
        "Put the samples into a DataLoader, or take every N-th one of what the iterator gives, N being "
        "rd.get_world_size().",
        examples=("unknown-iterator",),
    ),
    Kind(
        "RF003",
        "training-comprehension",
        "The training is run by a comprehension, whose turns are not followed as those of a loop are.",
        "Write a for statement with the step in it, and convert again.",
    ),
    Kind(
        "RF003",
        "removed-next",
        "Iterators of a DataLoader have no method next() since torch 1.13: the script fails before it trains.",
        "Write next(batches), and convert again.",
    ),
    Kind(
        "RF003",
        "repeated-evaluation",
        "LBFGS evaluates the loss several times per step, in a line search that each rank would end by its own loss.",
        "Train with an optimizer of one evaluation per step. Under an option, LBFGS stays for one process.",
        is_local=True,
        examples=("lbfgs",),
    ),
    Kind(
        "RF003",
        "closure-step",
        "optimizer.step(closure) runs the loss and its gradients inside the optimizer, as often as that likes.",
        "Where it does so once, write `loss = closure()`, and `optimizer.step()` without an argument after it.",
        examples=("lbfgs",),
    ),
    Kind(
        "RF003",
        "skipped-by-batch",
        "What is in a rank's own batch decides whether it makes the step: the others wait for its gradients, or have "
        "other weights from then on.",
        "Decide by what all ranks know (the loss of all, a count), or let a batch that is left out count zero: "
        "`loss = loss * keep`.",
        is_local=True,
        examples=("skipped-step",),
        assumption="all ranks leave out the same steps",
    ),
    Kind(
        "RF003",
        "steps-in-batch",
        "The training makes a step for each entry of a batch that the loader gives, as where a collate_fn returns a "
        "list of batches. Each process has a part of the samples, so fewer steps, or another number than the others.",
        "Let the loader give what one step takes: the batch size of a step as that of the loader, and a sampler that "
        "puts samples of a length together where the script sorts a longer batch for that.",
    ),
    Kind(
        "RF003",
        "no-model",
        "Which model the optimizer trains could not be followed, so it cannot be wrapped.",
        "Assign the model to a variable of its own before training, `model = rd.distribute_model(model)` after it; for "
        "a tensor without a module write `rd.model.distribute_parameter(weight)`.",
        examples=("weights-without-a-module", "run-by-a-function"),
    ),
    Kind(
        "RF003",
        "library-training",
        "A library trains a network whole, next to the training of the script: every process would do so again, and "
        "write its files over those of the others.",
        "Run it in a script of its own, for one process, and let this one load the file that it leaves.",
        is_local=True,
    ),
    Kind(
        "RF003",
        "parameter-gradients",
        "torch.autograd.grad, or a library of inner steps, gives gradients of parameters for a rank's own samples, and "
        "the training uses them: nothing makes them those of the whole batch.",
        "Give each rank whole tasks, and average the gradients after backward(): "
        "`weight.grad = rd.reduce_loss(weight.grad)`; or train without these.",
        is_local=True,
        examples=("meta-learning",),
    ),
    Kind(
        "RF003",
        "trained-copy",
        "An optimizer has the parameters of a copy of the model, and DDP averages the gradients of the model itself.",
        "Wrap what is trained: `local = rd.distribute_model(copy.deepcopy(model))`, on every rank at the same "
        "place, before its optimizer is made.",
        is_local=True,
        examples=("trained-copy",),
    ),
    Kind(
        "RF003",
        "hooked-step",
        "Hooks keep the inputs or gradients of layers for a rank's own samples, and the step of the optimizer is made "
        "of them, so that each rank would make another one.",
        "Average what the hooks keep over the ranks before the step, `mean = rd.reduce_loss(mean)`; or use an "
        "optimizer that needs the gradients alone.",
        is_local=True,
        examples=("hooked-step",),
    ),
    Kind(
        "RF003",
        "configured-loss",
        "A configuration names the class of the loss, or of the model that computes it: in a mean, a sum and a loss "
        "that compares samples, ranks come together in different ways.",
        "Write the class out where it is made, `criterion = nn.CrossEntropyLoss()`, or a table of the classes that it "
        "may be, and convert again.",
        examples=("configured-loss",),
    ),
    Kind(
        "RF003",
        "renormalised-embedding",
        "max_norm scales the rows that a batch looks up, in place; each rank looks up others, and the weights of the "
        "ranks become different.",
        "Leave max_norm out, and scale all rows after each step, the same on every rank: `with torch.no_grad(): "
        "emb.weight.copy_(torch.renorm(emb.weight, 2, 0, max_norm))`.",
        is_local=True,
        examples=("renormalised-embedding",),
    ),
    Kind(
        "RF003",
        "name-taken",
        "The names `rd` and `multigpu`, by which the runtime is imported, have other meanings in a file.",
        "Give the other thing another name.",
    ),
    Kind(
        "RF103",
        "loader-in-several-places",
        "The loader is set in several places and no line comes after all of them.",
        "Assign it in one place, or write `loader = rd.distribute_loader(loader)` at the start of the training.",
        examples=("several-loaders",),
    ),
    Kind(
        "RF104",
        "stream",
        "The library splits the files of its stream over workers and ranks by itself; a second split would leave "
        "samples out.",
        "Let the library split them by rank, and end the epoch after equal numbers of steps.",
    ),
    Kind(
        "RF208",
        "data-parallel-call",
        "What data_parallel gives to the module cannot be told.",
        "Write module(inputs), or module(*inputs) for a tuple.",
        is_local=True,
    ),
    Kind(
        "RF208",
        "data-parallel-extended",
        "A class that is derived from DataParallel does more than that, which would be lost.",
        "Move what it adds into the model, and use the model itself.",
        is_local=True,
        examples=("data-parallel-extended",),
    ),
    Kind(
        "RF208",
        "copied-to-gpus",
        "The script copies its model to several GPUs by itself; each process would do so, past DDP.",
        "Call the model itself, `model(x)`: each process has one GPU.",
        is_local=True,
        examples=("copied-to-gpus",),
    ),
    Kind(
        "RF209",
        "late-layers",
        "A model makes layers when it runs, so that the wrapper, made before, does not know of their parameters: the "
        "gradients of these would be those of each rank.",
        "Make them in __init__, or let the model run once before it is wrapped: model(x) on a batch of zeros, "
        "`model = rd.distribute_model(model)`, then the optimizer.",
    ),
    Kind(
        "RF209",
        "trained-by-methods",
        "A method of the model calls backward itself, so DDP cannot run it as a forward pass.",
        "Let the method return the loss, and call backward in the training loop.",
        examples=("trained-by-methods",),
    ),
    Kind(
        "RF209",
        "model-per-epoch",
        "The model is taken out of something in every epoch and would be wrapped each time.",
        "Take it out once, before the loop over the epochs.",
        examples=("model-per-epoch",),
    ),
    Kind(
        "RF209",
        "model-not-followed",
        "An optimizer changes a model that a library is given, or that is reached in a way that cannot be followed: no "
        "call of it is seen that the wrapper could take.",
        "Call the model by its variable in the training loop, `output = model(x)`, or wrap it by hand and give the "
        "library the wrapper.",
        examples=("run-by-a-function",),
    ),
    Kind(
        "RF209",
        "model-of-several-functions",
        "Several functions set the model, and no line comes after all of them and before the training.",
        "Assign it in one place, before the optimizer is made, or wrap it wherever it is made.",
        examples=("growing-model",),
    ),
    Kind(
        "RF210",
        "carried-state",
        "What the model remembers of one batch goes into the next: the rows of a batch are then parts of long "
        "sequences, and a rank has to keep its own rows.",
        "Split the sequences among the ranks, not the batches: each rank keeps its rows of every batch.",
        is_local=True,
        examples=("carried-hidden-state",),
        assumption="the loss does not depend on what is carried, or each rank may carry its own",
    ),
    Kind(
        "RF210",
        "samples-kept",
        "A queue, a memory bank or a list of samples keeps what each batch gives it; each rank would keep its own.",
        "Gather the samples of all ranks before they are put in: `keys = rd.data.gather_batch(keys)`.",
        is_local=True,
        examples=("samples-kept",),
    ),
    Kind(
        "RF210",
        "batch-statistics",
        "A layer of the project keeps statistics of the batches, as batch normalisation does, and computes its output "
        "from them; each rank would compute and keep those of its own samples.",
        "Use torch.nn.BatchNorm1d (2d, 3d), which `convert` synchronises, or take the mean over all ranks: "
        "`mean = rd.loss.batch_mean(x.mean(0))`.",
        is_local=True,
        examples=("batch-statistics",),
    ),
    Kind(
        "RF210",
        "batch-buffer",
        "A tensor that is made once, for the batch size, is filled from each batch; where a rank's batch is smaller "
        "than that, the rows of an older batch remain in it and are trained on.",
        "Use the batch itself in place of the tensor, `inputs = images`, or make the tensor for each batch, with "
        "len(images) rows. `inputs.data.resize_(...)` leaves the size of inputs as it is.",
        is_local=True,
    ),
    Kind(
        "RF303",
        "in-batch-loss",
        "The loss compares the samples of a batch with each other, so a rank that has a part of them computes another.",
        "Gather the embeddings of all ranks with their gradients, `z = rd.loss.batch_rows(z)`, and compute the loss of "
        "the whole batch, with the same random choices on all ranks.",
        is_local=True,
        examples=("in-batch-loss",),
        assumption="the loss uses no comparison of one sample with another one",
    ),
    Kind(
        "RF402",
        "own-decision",
        "All ranks take part in a call, and each would decide by its own samples whether it makes it.",
        "Make the call at every step or epoch, or decide by what all ranks know: the step, loss.item().",
        examples=("evaluated-by-batch",),
    ),
    Kind(
        "RF311",
        "rate-search",
        "A finder of learning rates is given another model or loader than that of the training, or a sum over samples.",
        "Give it the model and the loader of the training, and a mean; its reset() restores the weights.",
        is_local=True,
    ),
    Kind(
        "RF405",
        "suppressed-errors",
        "An error in one rank's step is suppressed: it leaves the step out, and the others wait for it.",
        "Let the error end the training, or catch it around what loads the data only.",
        is_local=True,
        assumption="no step ends with an error that is suppressed",
    ),
    Kind(
        "RF501",
        "model-in-write",
        "The model runs inside a statement that one process alone may run.",
        "Put its output into a variable before that statement.",
        is_local=True,
    ),
    Kind(
        "RF510",
        "search",
        "A search for settings runs in the script, and every process would run one of its own.",
        "Let the search start the training as a command: each trial then runs on all GPUs.",
        is_local=True,
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
# Kinds without an example, and without a change of lines that can be shown.
WITHOUT_LINES = {
    "framework": "the framework distributes the training by its own settings.",
    "distributed-already": "the script is distributed as it is.",
    "no-training": "another script is to be named.",
    "name-taken": "a name of the script is to be changed.",
    "stream": "the refusal names the two settings of webdataset, with the number of steps that you know.",
    "steps-in-batch": "the refusal says what to do: a DataLoader that gives one entry at a time.",
    "late-layers": "the refusal says what to do: layers made in __init__, or a first run before the wrapper.",
    "library-training": "the call is to be moved to a script of its own.",
    "search": "the search is to start the script, as a command: its own settings say how.",
}


def kinds_of(code: str) -> list[Kind]:
    """Return the kinds of refusals of a rule."""
    return [kind for kind in _ALL if kind.code == code]
