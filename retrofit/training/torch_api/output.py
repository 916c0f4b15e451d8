"""Output of a script in its terminal: prints, progress bars, loggers, questions."""

from __future__ import annotations

from . import runtime

# Progress bars around what is gone through, and those that count themselves.
_TQDM = [f"tqdm{module}" for module in ("", ".std", ".auto", ".notebook", ".autonotebook", ".rich", ".asyncio", ".gui")]
PROGRESS_BARS = frozenset({
    *(f"{module}.tqdm" for module in _TQDM), "tqdm.tqdm_notebook", "rich.progress.track", "alive_progress.alive_it",
})  # fmt: skip
COUNTING_BARS = frozenset({*(f"{module}.trange" for module in _TQDM), "tqdm.tnrange"})
HANDLED_BARS = frozenset({"alive_progress.alive_bar", "rich.progress.Progress"})  # moved on by calls
BARS = PROGRESS_BARS | COUNTING_BARS | HANDLED_BARS
# Methods of bars: those that show what they are given, all that change nothing but the bar.
BAR_TEXTS = frozenset({"set_postfix", "set_postfix_str", "set_description", "set_description_str"})
BAR_METHODS = BAR_TEXTS | {"update", "refresh", "write", "close"}

# The terminal's streams, what writes to them, what sets up loggers that do, and the methods of loggers.
STREAMS = frozenset(f"sys.{mark}{name}{mark}" for name in ("stdout", "stderr") for mark in ("", "__"))
SHOWS = frozenset({
    "rich.print", "rich.print_json", "rich.console.Console.print", "rich.console.Console.rule",
    "rich.console.Console.log", "rich.progress.Progress.console.print", "rich.progress.Progress.console.log",
    "click.echo", "click.secho", "typer.echo", "typer.secho", "pprint.pprint", "pprint.pp",
    "pprint.PrettyPrinter.pprint", "termcolor.cprint", "icecream.ic",
    *(f"{bar}.write" for bar in PROGRESS_BARS if bar.endswith(".tqdm")),
    *(f"{stream}.{method}" for stream in STREAMS for method in ("write", "writelines", "buffer.write")),
})  # fmt: skip
PRINTS = SHOWS | {"print", "warnings.warn", runtime.PRINT_MAIN}
LOG_HANDLERS = frozenset({"logging.Handler", "logging.StreamHandler"})  # of which scripts derive their own
LOGGERS = LOG_HANDLERS | frozenset({
    "logging.basicConfig", "rich.logging.RichHandler", "coloredlogs.install", "absl.logging.set_verbosity",
    "absl.logging.info",
    *(f"loguru.logger.{name}" for name in ("add", "info", "debug", "success", "warning", "error", "log", "configure")),
    "hydra.main",  # which sets up handlers for the terminal and for a file
})  # fmt: skip
FILE_HANDLERS = frozenset({
    "logging.FileHandler", "concurrent_log_handler.ConcurrentRotatingFileHandler",
    *(f"logging.handlers.{kind}FileHandler" for kind in ("Rotating", "TimedRotating", "Watched", "BaseRotating")),
})  # fmt: skip
FILE_LOGGERS = FILE_HANDLERS | {f"{name}.__init__" for name in FILE_HANDLERS} | {"logzero.logfile"}
LOGGER_METHODS = frozenset({"info", "debug", "warning", "warn", "error", "critical", "exception"})
# The module of the functions that are there without an import.
BUILTINS = frozenset({"builtins", "__builtin__", "__builtins__"})

# Packages whose functions show nothing of what they are given.
SHOWS_NOTHING = frozenset({"torch", "gc", "random", "time", "os.path", "copy", "math", "itertools"})

# Questions to whoever sits at the terminal.
PROMPTS = frozenset({
    "input", "raw_input", "getpass.getpass", "click.confirm", "click.prompt", "typer.confirm", "typer.prompt",
    "questionary.confirm", "rich.prompt.Prompt.ask", "rich.prompt.Confirm.ask",
})  # fmt: skip

# Functions that print what the function returns that they run, and the parameter by which it is changed before.
PRINTS_RESULT = {"fire.Fire": "serialize"}
