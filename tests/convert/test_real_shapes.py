"""Shapes that real projects have, each in a few lines, and what a conversion makes of them."""

from __future__ import annotations

from pathlib import Path

from convert.conversion import conversion, converted

HEAD = """\
import argparse
import os
import random

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--gpu", default="0")
parser.add_argument("--seed", type=int)
args = parser.parse_args()
"""
MAKE = """\
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = nn.Linear(3, 1)
optimizer = optim.SGD(model.parameters(), lr=args.lr)
"""
TRAIN = """\
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""


def refusals(folder: Path, script: str) -> list[str]:
    return [finding.refusal for finding in conversion(folder, script).refusals]


def test_a_learning_rate_in_the_settings_is_scaled_wherever_it_is_set(tmp_path: Path) -> None:
    settings = "state = {name: value for name, value in vars(args).items()}\n"
    lower = "    for group in optimizer.param_groups:\n        group['lr'] = 0.1 * state['lr']\n"
    lines = converted(tmp_path, HEAD + settings + MAKE + TRAIN + lower)
    assert "group['lr'] = rd.scaled_lr(0.1 * state['lr'])" in lines


def test_a_rate_computed_from_the_optimizers_own_is_not_scaled_twice(tmp_path: Path) -> None:
    schedule = (
        "class Poly:\n"
        "    def __init__(self, optimizer):\n"
        "        self.groups, self.first = optimizer.param_groups, []\n"
        "        for group in optimizer.param_groups:\n"
        "            self.first.append(group['lr'])\n\n"
        "    def step(self, part):\n"
        "        for first, group in zip(self.first, self.groups):\n"
        "            group['lr'] = first * part\n"
        "        for index, group in enumerate(optimizer.param_groups):\n"
        "            group['lr'] = self.first[index] * part\n\n"
    )
    lines = converted(tmp_path, HEAD + schedule + MAKE + "poly = Poly(optimizer)\n" + TRAIN + "    poly.step(0.5)\n")
    assert "group['lr'] = self.first[index] * part" in lines
    assert sum("scaled_lr" in line for line in lines) == 1


def test_a_sum_that_is_divided_by_the_number_of_samples_is_a_mean(tmp_path: Path) -> None:
    loss = "        loss = nn.functional.mse_loss(model(x), x[:, :1], reduction='sum')\n        {}loss.backward()\n"
    train = TRAIN.replace("        model(x).pow(2).mean().backward()\n", loss)
    assert "rd.loss.sum_loss(loss).backward()" in converted(tmp_path, HEAD + MAKE + train.format(""))
    assert "loss.backward()" in converted(tmp_path, HEAD + MAKE + train.format("loss /= len(x)\n        "))


def test_models_in_a_list_are_wrapped_where_they_are_made(tmp_path: Path) -> None:
    make = MAKE.replace("model.parameters()", "[*model.parameters(), *head.parameters()]")
    make = make.replace("optimizer =", "head = nn.Linear(1, 1)\noptimizer =")
    batches = "".join(f"{line}\n" for line in TRAIN.splitlines()[1:]).replace("model(x)", "head(model(x))")
    train = f"def train(models):\n    model, head = models\n{batches}\n\n"
    train += "for epoch in range(2):\n    train([model, head])\n"
    lines = converted(tmp_path, HEAD + make + train)
    first = lines.index("def train(models):")
    assert {"model = rd.distribute_model(model)", "head = rd.distribute_model(head)"} <= set(lines[:first])
    assert not any("distribute_model" in line for line in lines[first:])


def test_a_model_fetched_in_every_epoch_is_not_wrapped_there(tmp_path: Path) -> None:
    make = MAKE.replace("model = nn.Linear(3, 1)\n", "held = {0: (nn.Linear(3, 1), 1)}\n")
    make = make.replace("model.parameters()", "[p for pair in held.values() for p in pair[0].parameters()]")
    train = TRAIN.replace("    for (x,)", "    model, weight = held[0]\n    model.train()\n    for (x,)", 1)
    assert any("which model is trained" in reason for reason in refusals(tmp_path, HEAD + make + train))


def test_a_choice_of_gpus_comes_before_the_first_file(tmp_path: Path) -> None:
    middle = "args.out = 'runs'\nos.makedirs(args.out)\nos.environ['CUDA_VISIBLE_DEVICES'] = str({})  # one\n"
    lines = converted(tmp_path, HEAD + middle.format("args.gpu") + MAKE + TRAIN)
    choice = lines.index("os.environ['CUDA_VISIBLE_DEVICES'] = rd.devices.visible_gpus(str(args.gpu))")
    assert choice < lines.index("rd.setup_distributed()") < lines.index("os.makedirs(args.out)")
    assert sum("CUDA_VISIBLE_DEVICES" in line for line in lines) == 1
    lines = converted(tmp_path, HEAD + middle.format("args.out") + MAKE + TRAIN)  # known behind the folder only
    assert lines.index("os.makedirs(args.out)") < lines.index("rd.setup_distributed()")


def test_a_random_seed_is_the_same_on_all_ranks(tmp_path: Path) -> None:
    draw = "if args.seed is None:\n    args.seed = {}\n"
    seeded = MAKE.replace("manual_seed(0)", "manual_seed(args.seed)")
    lines = converted(tmp_path, HEAD + draw.format("random.randint(1, 10000)") + seeded + TRAIN)
    assert lines.index("rd.share_random_state()") < lines.index("if args.seed is None:")
    assert "rd.share_random_state()" not in converted(tmp_path, HEAD + draw.format("7") + seeded + TRAIN)


def test_numbers_drawn_before_the_seed_is_set_are_the_same_on_all_ranks(tmp_path: Path) -> None:
    draw = "run = random.randint(1, 10000)\n"
    assert "rd.share_random_state()" in converted(tmp_path, HEAD + draw + MAKE + TRAIN)
    assert "rd.share_random_state()" not in converted(tmp_path, HEAD + "random.seed(0)\n" + draw + MAKE + TRAIN)
    train = "".join(f"    {line}\n" for line in (MAKE + TRAIN).splitlines())
    later = HEAD + draw + "\n\ndef train(run):\n    random.seed(0)\n" + train + "\n\ntrain(run)\n"
    assert "rd.share_random_state()" in converted(tmp_path, later)


def test_a_picture_or_model_is_written_by_one_process(tmp_path: Path) -> None:
    show = "\n\ndef show(image, name):\n    image.save('out/' + name + '.png')\n\n\nshow(draw(model), 'last')\n"
    lines = converted(tmp_path, HEAD + "from pictures import draw\n" + MAKE + TRAIN + show)
    assert lines[lines.index("image.save('out/' + name + '.png')") - 1] == "if rd.is_main_process():"
    model = show.replace(".png'", ".pt'")  # of whatever library
    lines = converted(tmp_path, HEAD + "from pictures import draw\n" + MAKE + TRAIN + model)
    assert lines[lines.index("image.save('out/' + name + '.pt')") - 1] == "if rd.is_main_process():"
    other = show.replace(" + '.png'", "")  # perhaps of something that waits for all processes
    lines = converted(tmp_path, HEAD + "from pictures import draw\n" + MAKE + TRAIN + other)
    assert lines[lines.index("image.save('out/' + name)") - 1] == "def show(image, name):"


def test_curves_logged_by_a_module_are_written_by_one_process(tmp_path: Path) -> None:
    script = HEAD + "from tensorboard_logger import configure, log_value\n\nconfigure('runs')\n" + MAKE + TRAIN
    lines = converted(tmp_path, script + "    log_value('epoch', epoch)\n")
    for call in ("configure('runs')", "log_value('epoch', epoch)"):
        assert lines[lines.index(call) - 1] == "if rd.is_main_process():"


def test_a_step_is_skipped_by_all_processes_or_by_none(tmp_path: Path) -> None:
    backward = "        model(x).pow(2).mean().backward()\n"
    step = "        loss = model(x).pow(2).mean()\n        if {}:\n            continue\n        loss.backward()\n"
    train = TRAIN.replace(backward, step)
    lines = converted(tmp_path, HEAD + MAKE + train.format("loss == 0 or not torch.isfinite(loss)"))
    position = lines.index("global_loss = rd.reduce_loss(loss)")
    assert lines[position + 1] == "if global_loss == 0 or not torch.isfinite(global_loss):"
    lines = converted(tmp_path, HEAD + MAKE + train.format("loss.item() > 1e6"))
    assert "if rd.reduce_loss(loss).item() > 1e6:" in lines
    lines = converted(tmp_path, HEAD + MAKE + train.format("len(x) < 2"))
    assert "if rd.loss.batch_count(len(x)) < 2:" in lines
    numbered = train.replace("for (x,) in loader", "for i, (x,) in enumerate(loader)")
    assert "if i < 2:" in converted(tmp_path, HEAD + MAKE + numbered.format("i < 2"))


def test_two_ways_to_compute_gradients_do_not_skip_a_step(tmp_path: Path) -> None:
    backward = "        model(x).pow(2).mean().backward()\n"
    step = (
        "        loss = model(x).pow(2).mean()\n        if loss > 1:\n            (0.5 * loss).backward()\n"
        "        else:\n            loss.backward()\n"
    )
    assert "if loss > 1:" in converted(tmp_path, HEAD + MAKE + TRAIN.replace(backward, step))


def test_a_choice_of_gpus_in_a_function_comes_before_its_loader(tmp_path: Path) -> None:
    choice = "os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu\n"
    first, loader, rest = MAKE.partition("loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)\n")
    parse = "args = parser.parse_args()\n"
    body = parse + first + loader + choice + rest + TRAIN
    main = "def main():\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "\n\nmain()\n"
    lines = converted(tmp_path, HEAD.replace(parse, "") + main)
    assert lines.index("os.environ['CUDA_VISIBLE_DEVICES'] = rd.devices.visible_gpus(args.gpu)") < lines.index(
        "rd.setup_distributed()"
    )
    assert lines.index("rd.setup_distributed()") < lines.index("loader = rd.distribute_loader(loader)")


def test_a_model_rebuilt_for_a_second_training_is_wrapped_again(tmp_path: Path) -> None:
    again = "{}optimizer = optim.SGD(model.parameters(), lr=args.lr)\n" + TRAIN
    wrapping = "model = rd.distribute_model(model)"
    lines = converted(tmp_path, HEAD + MAKE + TRAIN + again.format("model = nn.Linear(3, 1)\n"))
    first, second = (number for number, line in enumerate(lines) if line == wrapping)
    assert lines[second - 1] == "model = nn.Linear(3, 1)" and first < lines.index("for epoch in range(2):") < second
    assert converted(tmp_path, HEAD + MAKE + TRAIN + again.format("")).count(wrapping) == 1


def test_the_first_child_of_data_parallel_is_the_module(tmp_path: Path) -> None:
    make = MAKE.replace("optimizer =", "model = nn.DataParallel(model)\noptimizer =")
    lines = converted(tmp_path, HEAD + make + TRAIN + "print(next(model.children()).weight)\n")
    assert "print(next(rd.model.script_model(model).children()).weight)" in lines
    lines = converted(tmp_path, HEAD + make + TRAIN + "print(model.module.weight)\n")
    assert "model = rd.model.data_parallel(nn.DataParallel, model)" in lines and "print(model.module.weight)" in lines


def test_gradient_accumulation_does_not_skip_a_step(tmp_path: Path) -> None:
    drawing = "batches = iter(loader)\nfor i in range(8):\n    try:\n        (x,) = next(batches)\n"
    drawing += "    except StopIteration:\n        batches = iter(loader)\n        (x,) = next(batches)\n"
    step = "        optimizer.zero_grad()\n        model(x).pow(2).mean().backward()\n        optimizer.step()\n"
    assert "if (i + 1) % 2 == 0:" in converted(tmp_path, HEAD + MAKE + drawing + "    if (i + 1) % 2 == 0:\n" + step)
    (reason,) = refusals(tmp_path, HEAD + MAKE + drawing + "    if x.sum() > 0:\n" + step)
    assert "decides whether a step is made" in reason


COUNTED = """\
batch_size = 4
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), batch_size, shuffle=True, drop_last=True)
model = nn.Linear(3, 1)
optimizer = optim.SGD(model.parameters(), lr=args.lr)
for epoch in range(2):
    right, seen = 0, 0
    for (x,) in loader:
        optimizer.zero_grad()
        y = model(x)
        y.pow(2).mean().backward()
        optimizer.step()
        right += (y > 0).sum().item()
        seen += batch_size * 3
    print(right / seen)
"""


def test_samples_that_the_batch_size_counts_are_those_of_all_processes(tmp_path: Path) -> None:
    lines = converted(tmp_path, HEAD + COUNTED)
    assert "seen += rd.loss.global_batch(batch_size) * 3" in lines
    assert "right += rd.reduce_total((y > 0).sum()).item()" in lines


def test_a_loop_over_both_phases_that_counts_by_the_batch_size(tmp_path: Path) -> None:
    both = COUNTED.replace("for (x,) in loader:", "for (x,) in loaders[phase]:").replace("\n    ", "\n        ")
    both = both.replace(
        "range(2):\n", "range(2):\n    for phase in ('train', 'val'):\n        model.train(phase == 'train')\n"
    )
    both = both.replace("y.pow(2).mean().backward()", "loss = y.pow(2).mean()")
    both = both.replace(
        "optimizer.step()", "if phase == 'train':\n                loss.backward()\n                optimizer.step()"
    )
    loaders = "loaders = {'train': loader, 'val': DataLoader(TensorDataset(torch.randn(8, 3)), batch_size)}\nfor epoch"
    lines = converted(tmp_path, HEAD + both.replace("for epoch", loaders))
    assert "seen += batch_size * 3" in lines and "right += (y > 0).sum().item()" in lines


def test_another_name_of_the_model_is_not_wrapped_again(tmp_path: Path) -> None:
    test = "def test(model):\n    net = model.eval()\n    for (x,) in loader:\n        print(net(x))\n\n\n"
    script = HEAD + test + MAKE + TRAIN + "    test(model)\n    model.train()\n"
    assert [line for line in converted(tmp_path, script) if "distribute_model" in line] == [
        "model = rd.distribute_model(model)"
    ]


def test_a_name_from_the_clock_is_broadcast_once(tmp_path: Path) -> None:
    script = HEAD + "import datetime\nname = str(datetime.datetime.now().strftime('%H'))\n" + MAKE + TRAIN
    lines = converted(tmp_path, script + "torch.save(model.state_dict(), name)\n")
    assert "name = str(rd.collectives.broadcast_object(datetime.datetime.now().strftime('%H')))" in lines


def test_a_figure_drawn_into_memory_is_drawn_by_every_process(tmp_path: Path) -> None:
    drawing = "import io\nfrom matplotlib import pyplot as plt\nbuffer = io.BytesIO()\nplt.savefig(buffer)\n"
    lines = converted(tmp_path, HEAD + MAKE + TRAIN + drawing + "plt.savefig('losses.png')\n")
    assert lines[lines.index("plt.savefig(buffer)") + 1 :][:2] == [
        "if rd.is_main_process():",
        "plt.savefig('losses.png')",
    ]
    assert lines[lines.index("plt.savefig(buffer)") - 1] == "buffer = io.BytesIO()"


def test_the_process_group_ends_although_another_method_trains_too(tmp_path: Path) -> None:
    method = "    def {name}(self):\n" + "".join(f"        {line}\n" for line in TRAIN.splitlines()) + "\n"
    learner = "class Learner:\n" + method.format(name="find_rate") + method.format(name="run") + "\n"
    main = "if __name__ == '__main__':\n    Learner().run()"
    assert converted(tmp_path, HEAD + MAKE + learner + main)[-1] == "rd.cleanup_distributed()"


def test_a_sum_of_losses_is_not_a_sum_over_samples(tmp_path: Path) -> None:
    heads = "        losses = []\n        for head in (0, 1):\n            losses.append({loss})\n"
    total = "        torch.stack(losses).sum().backward()\n"
    for loss, is_summed in (("model(x).pow(2).mean()", False), ("model(x).pow(2).sum()", True)):
        step = TRAIN.replace("        model(x).pow(2).mean().backward()\n", heads.format(loss=loss) + total)
        lines = converted(tmp_path, HEAD + MAKE + step)
        assert ("rd.loss.sum_loss(torch.stack(losses).sum()).backward()" in lines) == is_summed


def test_every_later_read_of_a_file_of_this_run_waits_for_it(tmp_path: Path) -> None:
    test = "def test(path):\n    model.load_state_dict(torch.load(path))\n    return model(torch.ones(1, 3))\n\n\n"
    body = "".join(f"    {line}\n" for line in TRAIN.splitlines())
    end = "torch.save(model.state_dict(), 'model.pt')\n"
    whole = HEAD + MAKE + test + TRAIN + end + "print(test('model.pt'))\n"
    lines = converted(tmp_path, whole)
    assert lines[lines.index("print(test('model.pt'))") - 1] == "rd.barrier()"
    instead = f"if args.seed:\n{body}    {end}else:\n    print(test('model.pt'))\n"
    assert "rd.barrier()" not in converted(tmp_path, HEAD + MAKE + test + instead)


def test_a_head_is_wrapped_if_only_its_weight_is_optimized(tmp_path: Path) -> None:
    own = "class Head(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    own += "        self.kernel = nn.Parameter(torch.ones(1))\n\n"
    own += "    def forward(self, y):\n        return y * self.kernel\n\n\n"
    for head, weight in (("Head()", "kernel"), ("nn.Linear(1, 1)", "weight")):
        make = MAKE.replace("optimizer", f"head = {head}\noptimizer").replace(
            "model.parameters()", f"[{{'params': model.parameters()}}, {{'params': [head.{weight}]}}]"
        )
        lines = converted(tmp_path, HEAD + own + make + TRAIN.replace("model(x)", "head(model(x))"))
        assert "head = rd.distribute_model(head)" in lines and "model = rd.distribute_model(model)" in lines
