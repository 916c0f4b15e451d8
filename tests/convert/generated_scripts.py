"""Training scripts put together from parts in every combination, in the layouts that people write."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

LOADERS = {
    "positional": ["{loader} = DataLoader(data, {batch}, True)"],
    "keywords": ["{loader} = DataLoader(dataset=data, batch_size={batch}, shuffle=True, drop_last=True)"],
    "dict": ["options = {{'batch_size': {batch}, 'shuffle': True}}", "{loader} = DataLoader(data, **options)"],
    "sampler": ["{loader} = DataLoader(data, batch_size={batch}, sampler=RandomSampler(data))"],
    "backslash": ["{loader} = \\", "    DataLoader(data, {batch}, shuffle=True)  # one line"],
    "brackets": ["{loader} = DataLoader(", "    data,", "    batch_size={batch},  # of all", "    shuffle=True,", ")"],
    "two at once": [
        "{loader}, second = DataLoader(data, {batch}, shuffle=True), DataLoader(data, 8)",
        "print('loss', sum(y.sum().item() for x, y in second))",
    ],
    "walrus": [
        "if (number := len(given := DataLoader(data, {batch}, shuffle=True))) > 1: print('loss', number)",
        "{loader} = given",
    ],
    "in a dict": ["loaders = {{'train': DataLoader(data, {batch}, shuffle=True)}}", "{loader} = loaders['train']"],
    "with the data": ["more = data; {loader} = DataLoader(more, {batch}, shuffle=True)"],
    "not shuffled": ["{loader} = DataLoader(data, {batch}); print(len({loader}))"],
}
MODELS = {
    "layer": ["{model} = nn.Linear(3, 1)"],
    "class": ["{model} = Net(3)"],
    "one line": ["torch.manual_seed(1); {model} = Net(3); {model}.train()"],
    "if": ["if True: {model} = Net(3)", "else:", "    {model} = nn.Linear(3, 1)"],
    "moved": ["{model} = Net(3)", "{model}.to(device)"],
    "chained": ["{model} = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(device)"],
}
OPTIMIZERS = {
    "sgd": ["{optimizer} = torch.optim.SGD({model}.parameters(), {lr}, momentum=0.9)"],
    "adam": ["{optimizer} = torch.optim.Adam(params={model}.parameters(), lr={lr})"],
    "groups": ["{optimizer} = torch.optim.SGD([{{'params': {model}.parameters(), 'lr': {lr}}}], lr=0.5)"],
    "filtered": [
        "{optimizer} = torch.optim.Adam(filter(lambda p: p.requires_grad, {model}.parameters()),",
        "                             lr={lr})",
    ],
}
SCHEDULERS = {
    "none": [],
    "one line": ["print('loss'); {scheduler} = torch.optim.lr_scheduler.StepLR({optimizer}, step_size=1)"],
    "steps": ["{scheduler} = torch.optim.lr_scheduler.StepLR({optimizer}, 1, gamma=0.5)"],
    "lambda": ["{scheduler} = torch.optim.lr_scheduler.LambdaLR({optimizer}, lambda epoch: 0.9 ** epoch)"],
}
EPOCHS = (
    "for epoch in range({epochs}):",
    "for epoch in tqdm(range({epochs})):",
    "epoch = -1\nwhile (epoch := epoch + 1) < {epochs}:",
)
LOOPS = ("for x, y in {loader}:", "for step, (x, y) in enumerate({loader}):", "for x, y in tqdm({loader}):")
STEPS = {
    "lines": [
        "{optimizer}.zero_grad()",
        "loss = ({model}(x) - y).pow(2).mean()",
        "loss.backward()",
        "{optimizer}.step()",
    ],
    "semicolons": ["{optimizer}.zero_grad(); loss = criterion({model}(x), y); loss.backward(); {optimizer}.step()"],
    "function": ["{optimizer}.zero_grad()", "loss = compute({model}, x, y)", "loss.backward(); {optimizer}.step()"],
    "if": [
        "if True:",
        "    {optimizer}.zero_grad()",
        "    loss = criterion({model}(x), y)",
        "    loss.backward()",
        "{optimizer}.step()",
    ],
    "walrus": ["{optimizer}.zero_grad()", "(loss := criterion({model}(x), y)).backward()", "{optimizer}.step()"],
}
AFTER_STEP = {
    "nothing": [],
    "print": ['print("loss", repr(loss.item()))'],
    "one line": ['if epoch >= 0: print("loss", repr(loss.item()))'],
    "f-string": ["print(f\"loss {{'%r' % loss.item()}} {{epoch:>3}}\")  # in quotes"],
    "total": ["total += loss.item()"],
}
AFTER_EPOCH = {
    "nothing": [],
    "save": ['torch.save({model}.state_dict(), "model.pt")'],
    "save one line": ['if epoch % 2: torch.save({model}.state_dict(), "model.pt")'],
    "save if": [
        "if total < 1e9:",
        '    torch.save({{"model": {model}.state_dict(), "epoch": epoch}},',
        '        "a.pt")',
    ],
    "text": ["with open('log.txt', 'a') as log:", "    log.write('''", "{{}}", "  '''.format(epoch))"],
    "save and print": ['torch.save({model}, "whole.pt"); print("loss", total)'],
    "save else": ["if epoch < 1: pass", "else: torch.save({model}.state_dict(), 'model.pt')"],
    "print": ["print('epoch %d' % epoch); print('loss', repr(total))"],
    "evaluate": ["print('loss', repr(evaluate({model}, {loader})))"],
}
FOLDERS = {
    "none": [],
    "made": ["os.makedirs('out', exist_ok=True)"],
    "one line": ["if not os.path.isdir('out'): os.makedirs('out')"],
    "try": ["try: os.mkdir('out')", "except FileExistsError: pass"],
    "semicolons": ["out = 'out'; os.makedirs(out, exist_ok=True); print('loss', out)"],
    "two lines": ["if not os.path.isdir('out'):", "    os.makedirs('out')"],
}
COMMENTS = ("", "# -- a comment, with 'quotes'", "# größer")


@dataclass(frozen=True)
class Script:
    """The choices of one script; see the tables above."""

    shape: str
    options: str
    loader: str
    model: str
    optimizer: str
    scheduler: str
    epochs: str
    loop: str
    step: str
    after_step: str
    after_epoch: str
    folder: str
    comment: str
    indent: str
    newline: str
    encoding: str
    ends_with_newline: bool

    @property
    def data(self) -> bytes:
        """The script as the bytes of a file."""
        head = ["# -*- coding: latin-1 -*-"] if self.encoding == "latin-1" else []
        lines = [*head, *_definitions(self), *_training(self)]
        text = self.newline.join(_indented(line, self.indent) for line in lines)
        return (text + self.newline * self.ends_with_newline).encode(self.encoding)


def scripts() -> st.SearchStrategy[Script]:
    """Return the strategy that draws scripts."""
    return st.builds(
        Script,
        shape=st.sampled_from(["module", "main guard", "function", "class"]),
        options=st.sampled_from(["constants", "argparse", "argparse in a function"]),
        loader=st.sampled_from(sorted(LOADERS)),
        model=st.sampled_from(sorted(MODELS)),
        optimizer=st.sampled_from(sorted(OPTIMIZERS)),
        scheduler=st.sampled_from(sorted(SCHEDULERS)),
        epochs=st.sampled_from(EPOCHS),
        loop=st.sampled_from(LOOPS),
        step=st.sampled_from(sorted(STEPS)),
        after_step=st.sampled_from(sorted(AFTER_STEP)),
        after_epoch=st.sampled_from(sorted(AFTER_EPOCH)),
        folder=st.sampled_from(sorted(FOLDERS)),
        comment=st.sampled_from(COMMENTS),
        indent=st.sampled_from(["    ", "  ", "\t"]),
        newline=st.sampled_from(["\n", "\r\n"]),
        encoding=st.sampled_from(["utf-8", "utf-8-sig", "latin-1"]),
        ends_with_newline=st.booleans(),
    )


def _definitions(script: Script) -> list[str]:
    lines = ["import argparse, os", "import torch; from torch import nn"]
    lines += [
        "from torch.utils.data import (DataLoader, RandomSampler,",
        "    TensorDataset)",
        "from tqdm import tqdm",
        "",
    ]
    lines += ["criterion = nn.MSELoss()", "device = 'cuda' if torch.cuda.is_available() else 'cpu'", script.comment, ""]
    lines += ["class Net(nn.Module):", "    def __init__(self, width):", "        super().__init__()"]
    lines += ["        self.layer = nn.Linear(width, 1)", "", "    def forward(self, x): return self.layer(x)", "", ""]
    lines += ["def compute(model, x, y): output = model(x); return criterion(output, y)", ""]
    lines += ["@torch.no_grad()", "def evaluate(model, loader):"]
    lines += ["    return sum(criterion(model(x), y).item() for x, y in loader)", "", ""]
    if script.options == "argparse in a function":
        lines += ["def get_arguments():", *_nested(_parser(script)), "    return parser.parse_args()", "", ""]
    return lines


def _parser(script: Script) -> list[str]:
    return [
        "parser = argparse.ArgumentParser(description='''",
        "  Trains.''')",
        "parser.add_argument('--lr', type=float, default=0.1); parser.add_argument('--epochs', type=int, default=2)",
        "parser.add_argument('--batch', type=int, default=4)",
    ]


def _arguments(script: Script) -> list[str]:
    if script.options == "constants":
        return ["LR = 0.1", "EPOCHS, BATCH = 2, 4"]
    if script.options == "argparse":
        return [*_parser(script), "args = parser.parse_args()"]
    return ["args = get_arguments()"]


def _training(script: Script) -> list[str]:
    """Return the lines that train, in the script's shape."""
    owner = "self." if script.shape == "class" else ""
    names = {name: owner + name for name in ("loader", "model", "optimizer", "scheduler")}
    of_args = {"lr": "args.lr", "epochs": "args.epochs", "batch": "args.batch"}
    names.update(dict(lr="LR", epochs="EPOCHS", batch="BATCH") if script.options == "constants" else of_args)
    made = ["torch.manual_seed(0)", script.comment, *FOLDERS[script.folder]]
    made += ["data = TensorDataset(torch.randn(16, 3), torch.randn(16, 1))"]
    made += [*LOADERS[script.loader], *MODELS[script.model], *OPTIMIZERS[script.optimizer]]
    made = [line.format(**names) for line in made + SCHEDULERS[script.scheduler]]
    run = [line.format(**names) for line in _loop(script)]
    if script.shape == "class":
        take = [
            "class Trainer:",
            "    def __init__(self, args):",
            *_nested(_nested(made)),
            "        self.args = args",
            "",
        ]
        take += ["    def fit(self):", "        args = self.args", *_nested(_nested(run)), "", ""]
        given = "None" if script.options == "constants" else "args"
        return [*(_arguments(script)), *take, f"Trainer({given}).fit()"]
    body = [*_arguments(script), *made, *run]
    if script.shape == "module":
        return body
    if script.shape == "main guard":
        return ["if __name__ == '__main__':", *_nested(body)]
    return ["def main():", *_nested(body), "", "", "if __name__ == '__main__': main()"]


def _loop(script: Script) -> list[str]:
    of_step = [*STEPS[script.step], *AFTER_STEP[script.after_step]]
    step_scheduler = [] if script.scheduler == "none" else ["{scheduler}.step()"]
    after = [*step_scheduler, *AFTER_EPOCH[script.after_epoch]]
    inner = ["total = 0.0", script.loop, *_nested(of_step), *after]
    return [*script.epochs.split("\n"), *_nested(inner), "print('loss', repr(loss.item()))"]


def _nested(lines: list[str]) -> list[str]:
    """Return lines one level deeper; those that go on inside a string too, where that changes its text only."""
    return [f"    {line}" if line else "" for line in lines]


def _indented(line: str, step: str) -> str:
    """Return a line with its levels of four spaces written in the script's own way."""
    text = line.lstrip(" ")
    levels, rest = divmod(len(line) - len(text), 4)
    return step * levels + " " * rest + text
