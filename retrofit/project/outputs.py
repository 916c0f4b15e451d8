"""What a project does to the world outside: files written, folders made, lines printed, trackers started."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .analysis import Analysis
from .calls import argument_for
from .reach import reached_nodes
from .scopes import Scope
from .values import PROGRESS_BARS, Display, LocalClass, LocalFunction

# Functions that write, by their full name.
WRITERS = {
    "torch.save", "numpy.save", "numpy.savez", "numpy.savez_compressed", "numpy.savetxt", "json.dump",
    "pickle.dump", "yaml.dump", "yaml.safe_dump", "matplotlib.pyplot.savefig", "torchvision.utils.save_image",
    "cv2.imwrite", "imageio.imwrite", "imageio.imsave", "imageio.mimsave", "skimage.io.imsave",
    "scipy.misc.imsave", "scipy.io.savemat", "joblib.dump", "dill.dump", "torchvision.io.write_png",
    "torchvision.io.write_jpeg", "logging.config.dictConfig", "logging.config.fileConfig", "torch.jit.save",
    "torch.onnx.export", "soundfile.write", "torchaudio.save", "torchvision.io.write_video", "scipy.io.wavfile.write",
    "librosa.output.write_wav", "os.fsync",
}  # fmt: skip
# Functions that change folders and files.
FILE_CHANGERS = {
    "os.makedirs", "os.mkdir", "os.remove", "os.unlink", "os.rename", "os.replace", "os.rmdir", "os.removedirs",
    "os.system", "shutil.copy", "shutil.copyfile", "shutil.copy2", "shutil.copytree", "shutil.rmtree", "shutil.move",
    "subprocess.call", "subprocess.run", "subprocess.check_call", "os.symlink",
}  # fmt: skip
COMMANDS = {"os.system", "subprocess.call", "subprocess.run", "subprocess.check_call"}  # which may do anything
# Methods that write, of objects whose class the analysis cannot see, where the name alone is telling.
WRITING_METHODS = {
    "savefig", "to_csv", "to_json", "to_pickle", "write_text", "write_bytes", "mkdir", "unlink", "touch", "writerow",
    "writerows", "save_weights",
}  # fmt: skip
# Objects that must exist once, and what they are called when they are made.
TRACKERS = {
    "tensorboardX.SummaryWriter", "torch.utils.tensorboard.SummaryWriter", "tensorboardX.writer.SummaryWriter",
    "torch.utils.tensorboard.writer.SummaryWriter", "tensorboard_logger.Logger", "visdom.Visdom", "wandb.init",
    "tensorboard.SummaryWriter", "importlib.import_module.SummaryWriter", "torch.utils.tensorboard.FileWriter",
    "comet_ml.Experiment", "aim.Run", "tensorflow.summary.FileWriter",
    "tensorflow.summary.create_file_writer",
}  # fmt: skip
TRACKER_CALLS = {
    "wandb.log", "wandb.finish", "wandb.save", "wandb.watch", "mlflow.log_metric", "mlflow.log_param",
    "tensorboard_logger.configure", "tensorboard_logger.log_value", "tensorboard_logger.log_histogram",
    "tensorboard_logger.log_images", "matplotlib.pyplot.show",
}  # fmt: skip
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif")
WRITING_MODE = re.compile(r"(?=.*[wax+])[rwaxbt+U]{1,4}")  # of open()
BUFFERS = {"io.BytesIO", "io.StringIO"}
COUNTING_BARS = {"tqdm.trange", "tqdm.std.trange", "tqdm.auto.trange", "tqdm.notebook.trange"}
LOGGERS = {"logging.basicConfig", "logging.StreamHandler"}
SAVE, WRITE, FOLDER, OPEN, TRACKER, TRACK, PRINT, BAR, LOGGER = (
    "save", "write", "folder", "open", "tracker", "track", "print", "bar", "logger",
)  # fmt: skip


@dataclass(frozen=True)
class Output:
    """A call that is seen outside. `kind` is one of the constants above, `name` what is called."""

    kind: str
    name: str
    call: ast.Call
    scope: Scope


def find_outputs(analysis: Analysis) -> list[Output]:
    """Return everything that the reachable code of a project shows or leaves behind, in source order."""
    found = [output for node, scope in reached_nodes(analysis) for output in _output_of(analysis, node, scope)]
    return sorted(found, key=lambda output: output.scope.source.place(output.call))


def _output_of(analysis: Analysis, node: ast.AST, scope: Scope) -> Iterator[Output]:
    if not isinstance(node, ast.Call) or _is_given_a_buffer(analysis, node, scope):
        return
    names = analysis.called(node, scope)
    for name in sorted(names):
        kind = _kind(analysis, name, node, scope)
        if kind:
            yield Output(kind, name, node, scope)
            return
    for value in analysis.evaluate(node.func, scope):
        if isinstance(value, LocalClass) and analysis.classes.bases(value.scope) & TRACKERS:
            yield Output(TRACKER, getattr(value.scope.node, "name", ""), node, scope)
            return
    if not isinstance(node.func, ast.Attribute):
        return
    is_own = any(isinstance(value, LocalFunction) for value in analysis.evaluate(node.func, scope))
    if not is_own and (node.func.attr in WRITING_METHODS or _saves_image(node)):
        yield Output(WRITE, node.func.attr, node, scope)
    elif not is_own and opens_own_path(node):
        yield Output(OPEN, "open", node, scope)


def _is_given_a_buffer(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this writes into memory: `plt.savefig(buffer)`."""
    return any(analysis.named(argument, scope) & BUFFERS for argument in call.args)


def _kind(analysis: Analysis, name: str, call: ast.Call, scope: Scope) -> str:
    if name == "torch.save":
        return SAVE
    if name.startswith("PIL.Image.") and name.endswith(".save"):
        return WRITE
    if name in WRITERS:
        return WRITE
    if name in FILE_CHANGERS:
        return FOLDER
    if name in TRACKERS:
        return TRACKER
    if name in TRACKER_CALLS:
        return TRACK
    if name in PROGRESS_BARS | COUNTING_BARS:
        return BAR
    if name == "logging.basicConfig" and path_of(call) is not None:
        return OPEN
    if name in LOGGERS:
        return LOGGER
    if name == "print":
        return "" if any(keyword.arg == "file" for keyword in call.keywords) else PRINT
    if name in ("open", "io.open", "codecs.open", "gzip.open", "h5py.File"):
        return OPEN if opens_for_writing(analysis, call, scope) else ""
    return OPEN if name in ("logging.FileHandler", "logging.handlers.RotatingFileHandler") else ""


def path_of(call: ast.Call) -> ast.expr | None:
    """Return the expression of the path in a call that opens a file, of `path.open("w")` what is opened."""
    if isinstance(call.func, ast.Attribute) and opens_own_path(call):
        return call.func.value
    named = next((keyword.value for keyword in call.keywords if keyword.arg in ("filename", "file", "path")), None)
    return named if named is not None else call.args[0] if call.args else None


def opens_for_writing(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is `open(path, "w")`; a mode may also be one of several that write, in a variable."""
    modes = analysis.evaluate(argument_for(call, ["file", "mode"], "mode"), scope)
    return bool(modes) and all(
        isinstance(mode, Display) and bool(WRITING_MODE.fullmatch(_text(mode.node))) for mode in modes
    )


def _saves_image(call: ast.Call) -> bool:
    """Return whether this is `image.save(path + ".png")`: a library's image, whatever made it."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "save" or not call.args:
        return False
    texts = (part.value for part in ast.walk(call.args[0]) if isinstance(part, ast.Constant))
    return any(isinstance(text, str) and text.lower().endswith(IMAGES) for text in texts)


def opens_own_path(call: ast.Call) -> bool:
    """Return whether this is `path.open("w")`."""
    is_open = isinstance(call.func, ast.Attribute) and call.func.attr == "open"
    return is_open and bool(WRITING_MODE.fullmatch(_text(argument_for(call, ["mode"], "mode"))))


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
