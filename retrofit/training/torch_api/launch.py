"""Command lines, settings, devices and environment variables."""

from __future__ import annotations

from . import runtime

# Functions that read the command line; objects and files with a script's settings.
PARSES = frozenset({
    "argparse.ArgumentParser.parse_args", "argparse.ArgumentParser.parse_known_args",
    "configargparse.ArgParser.parse_args", "configargparse.ArgumentParser.parse_args",
})  # fmt: skip
HOLDS_SETTINGS = frozenset({
    "argparse.Namespace", "types.SimpleNamespace", "easydict.EasyDict", "addict.Dict", "box.Box", "munch.Munch",
    "omegaconf.OmegaConf.load", "omegaconf.OmegaConf.create", "yacs.config.CfgNode", "yaml.load", "yaml.safe_load",
    "yaml.full_load", "json.load", "json.loads", "toml.load", "tomllib.load", "docopt.docopt", "absl.flags.FLAGS",
    "simple_parsing.parse", "tyro.cli",
})  # fmt: skip
SETTINGS_NAMES = frozenset({
    "args", "arg", "opt", "opts", "option", "options", "config", "conf", "cfg", "hparams", "hps", "hp", "params",
    "flags", "settings", "cli_args", "configs",
})  # fmt: skip
# Functions that run another one as a command, and words in the decorators that make one.
COMMAND_RUNNERS = frozenset(
    {"fire.Fire", "typer.run", "tyro.cli", "defopt.run", "plac.call", "clize.run", "argh.dispatch_command"}
)
COMMAND_DECORATORS = frozenset({"command", "main", "click", "typer", "hydra"})

# The environment, and what sets a variable in it.
ENVIRON = "os.environ"
SETS_VARIABLE = frozenset({f"{ENVIRON}.setdefault", f"{ENVIRON}.__setitem__", "os.putenv"})

# Devices: what is given one, what chooses one for the process, how many there are.
TAKES_DEVICE = frozenset({"torch.cuda.set_device", "torch.cuda.device", "torch.set_default_device"})
CHOOSES_DEVICE = frozenset({
    "torch.cuda.set_device", "torch.cuda.device", runtime.SETUP, *(runtime.DEVICE_CHOICES - runtime.RANK_CALLS),
})  # fmt: skip
DEVICE_COUNT = "torch.cuda.device_count"
