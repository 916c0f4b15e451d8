"""Commands that a program starts to read what they print."""

from __future__ import annotations

import ast

# Commands that change files, whether what they print is read or not.
CHANGING = {
    "rm", "mkdir", "rmdir", "mv", "cp", "ln", "touch", "tar", "unzip", "gunzip", "gzip", "zip", "wget", "curl", "rsync",
    "chmod", "chown", "pip", "conda", "make", "tee", "kill", "pkill", "dd", "sed", "python", "python3", "bash", "sh",
}  # fmt: skip
GIVE_OUTPUT = ("check_output", "getoutput", "getstatusoutput")  # to be called for what the command prints
CHANGING_OF_GIT = {"clone", "pull", "checkout", "reset", "commit", "stash", "init", "add"}


def only_reads(call: ast.Call, name: str, parent: ast.AST) -> bool:
    """Return whether a call of `name` starts a known command for its output: `os.popen("git rev-parse HEAD").read()`.

    `parent` is the node that holds the call. A command that is not a literal may do anything.
    """
    if name.rpartition(".")[2] in GIVE_OUTPUT:
        return not isinstance(parent, ast.Expr)
    words = _words(call.args[0]) if call.args else []
    names = {word.rpartition("/")[2] for word in words}
    if not words or names & CHANGING or any(">" in word for word in words):
        return False
    if "git" in names and names & CHANGING_OF_GIT:
        return False
    if name == "os.popen":
        mode = call.args[1] if len(call.args) > 1 else None
        return not isinstance(parent, ast.Expr) and (mode is None or getattr(mode, "value", "") == "r")
    return any(_is_taken(keyword) for keyword in call.keywords)


def _is_taken(keyword: ast.keyword) -> bool:
    """Return whether a keyword hands what a command prints to the program: `stdout=subprocess.PIPE`."""
    if keyword.arg == "capture_output":
        return getattr(keyword.value, "value", False) is True
    value = keyword.value
    return keyword.arg == "stdout" and getattr(value, "attr", getattr(value, "id", "")) == "PIPE"


def _words(command: ast.expr) -> list[str]:
    """Return the words of a command that is a text or a list of texts; none where it is put together."""
    if isinstance(command, ast.Constant) and isinstance(command.value, str):
        return command.value.split()
    parts = command.elts if isinstance(command, (ast.List, ast.Tuple)) else []
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return texts if len(texts) == len(parts) else []
