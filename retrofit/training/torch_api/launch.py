"""Command lines, settings, devices and environment variables."""

from __future__ import annotations

from . import runtime

# Functions that read the command line; objects whose entries are attributes; these and files with a script's settings.
PARSES = frozenset({
    "argparse.ArgumentParser.parse_args", "argparse.ArgumentParser.parse_known_args",
    "configargparse.ArgParser.parse_args", "configargparse.ArgumentParser.parse_args",
})  # fmt: skip
HOLDS_ATTRIBUTES = frozenset({
    "argparse.Namespace", "types.SimpleNamespace", "easydict.EasyDict", "addict.Dict", "box.Box", "munch.Munch",
})  # fmt: skip
HOLDS_SETTINGS = HOLDS_ATTRIBUTES | frozenset({
    "omegaconf.OmegaConf.load", "omegaconf.OmegaConf.create", "yacs.config.CfgNode", "yaml.load", "yaml.safe_load",
    "yaml.full_load", "json.load", "json.loads", "toml.load", "tomllib.load", "docopt.docopt", "absl.flags.FLAGS",
    "simple_parsing.parse", "tyro.cli",
})  # fmt: skip
SETTINGS_NAMES = frozenset({
    "args", "arg", "opt", "opts", "option", "options", "config", "conf", "cfg", "hparams", "hps", "hp", "params",
    "flags", "settings", "cli_args", "configs",
})  # fmt: skip
# Functions that make an object of the class that a configuration names, of it and of further arguments.
INSTANTIATES = frozenset({"hydra.utils.instantiate", "hydra.utils.call", "hydra_zen.instantiate"})
# Functions that run another one as a command, and words in the decorators that make one.
COMMAND_RUNNERS = frozenset({
    "fire.Fire", "typer.run", "tyro.cli", "defopt.run", "plac.call", "clize.run", "argh.dispatch_command",
    "absl.app.run", "jsonargparse.CLI", "jsonargparse.auto_cli", "cyclopts.run",
})  # fmt: skip
KEEPS_UNDERSCORES = frozenset({"fire.Fire", "jsonargparse.CLI", "jsonargparse.auto_cli"})  # in names of flags
COMMAND_DECORATORS = frozenset({"command", "main", "click", "typer", "hydra"})
# Decorators that make the folder of the run, and log files in it, before the function is called.
MAKES_RUN_FOLDER = frozenset({"hydra.main"})
# Decorators that give a command an argument; functions, by their own names, that define a flag.
OPTION_DECORATORS = frozenset({"click.option", "click.argument"})
DEFINES_FLAG = frozenset({
    "DEFINE_string", "DEFINE_integer", "DEFINE_float", "DEFINE_bool", "DEFINE_boolean", "DEFINE_enum", "DEFINE_list",
    "DEFINE_multi_string", "DEFINE_multi_integer", "DEFINE_multi_float",
})  # fmt: skip
# Functions and methods, by their own names, that only declare something at the top of a script.
DECLARES = DEFINES_FLAG | {
    "getLogger", "Typer", "filterwarnings", "simplefilter", "namedtuple", "TypeVar", "Path", "instance", "store",
    "mark_flag_as_required",
}  # fmt: skip

# The environment, and what sets a variable in it.
ENVIRON = "os.environ"
SETS_VARIABLE = frozenset({f"{ENVIRON}.setdefault", f"{ENVIRON}.__setitem__", "os.putenv"})

# Devices: what is given one, what chooses one for the process, how many there are.
SET_DEVICE = "torch.cuda.set_device"  # needs the number of a device
TAKES_DEVICE = frozenset({SET_DEVICE, "torch.cuda.device", "torch.set_default_device"})
CHOOSES_DEVICE = frozenset({
    "torch.cuda.set_device", "torch.cuda.device", runtime.SETUP, *(runtime.DEVICE_CHOICES - runtime.RANK_CALLS),
})  # fmt: skip
DEVICE_COUNT = "torch.cuda.device_count"
