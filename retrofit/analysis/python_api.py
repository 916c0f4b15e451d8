"""Plain Python: what the methods of containers do, and which functions make a container of what they are given."""

from __future__ import annotations

# Methods that put one object into a container, or all objects of another one, and those of them that lists have.
ADDS_ONE = frozenset({"append", "appendleft", "add", "push", "insert", "put", "put_nowait", "setdefault"})
ADDS_ALL = frozenset({"extend", "update", "extendleft"})
GROWS_LIST = frozenset({"append", "extend", "insert"})
# Methods that take one object out for good, or all of them; that order the objects again.
REMOVES = frozenset({"remove", "discard", "pop"})
EMPTIES = frozenset({"clear", "reset"})
# Functions and methods that give an object and take it out, or go one further, so that the next call gives another.
POPS = frozenset({"pop", "popleft"})  # of lists and queues
TAKES_OUT = POPS | {"popitem", "get_nowait", "heappop", "heappushpop", "heapreplace", "next"}
SORTS_IN_PLACE = frozenset({"sort", "reverse"})
# Methods that give one object of a container by its key, all objects, or any of that.
LOOKS_UP = frozenset({"get", "pop", "setdefault"})
LISTS_OBJECTS = frozenset({"values", "items"})
TAKES = LOOKS_UP | LISTS_OBJECTS | {"popleft", "copy", "__getitem__"}
# Functions that make a container of what another one holds, by their full names and by their own.
MAPPINGS = frozenset({
    "dict", "collections.OrderedDict", "collections.Counter", "collections.defaultdict", "collections.UserDict",
    "typing.Dict", "typing.OrderedDict", "typing.TypedDict",
})  # fmt: skip
SEQUENCES = frozenset({"list", "tuple", "collections.deque", "collections.UserList", "typing.List"})
SETS = frozenset({"set", "frozenset"})
COUNTERS = frozenset({"Counter", "fromkeys"})
# Classes of objects with the attributes that they are given.
NAMESPACES = frozenset({
    "types.SimpleNamespace", "argparse.Namespace", "munch.Munch", "easydict.EasyDict", "addict.Dict", "box.Box",
})  # fmt: skip
CONTAINERS = MAPPINGS | SEQUENCES | NAMESPACES | {"set", "sorted", "reversed"}
# Functions that go through what they are given.
GOES_THROUGH = SEQUENCES | SETS | {"sorted", "sum", "max", "min", "any", "all", "map", "filter"}
# The attributes of an object as a dict or a tuple: functions, and a method of named tuples.
AS_CONTAINERS = frozenset({"dataclasses.asdict", "dataclasses.astuple"})
AS_DICT = "_asdict"
# The dict itself in which an object has its attributes: a function, an attribute.
VARS, ATTRIBUTES = "vars", "__dict__"
LISTS_VARIABLES = frozenset({"locals", "globals"})  # and vars(), of a scope
# Functions that make a class of tuples with names, which they are given as a list or as a text.
NAMED_TUPLES = frozenset({"collections.namedtuple", "typing.NamedTuple"})
TUPLE_OF_NAMES = "a tuple of names"  # what an object of such a class is made by
# Functions that make a number or a text, which holds nothing.
SCALARS = frozenset({"int", "float", "bool", "str", "complex"})
CONTAINER_NAMES = frozenset(name.rpartition(".")[2] for name in MAPPINGS | SEQUENCES | {"set"})

# Attributes of a table or an array through which its own entries are set: frame.loc[row] = values.
VIEWS = frozenset({"loc", "iloc", "at", "iat", "flat", "data", "T", "real", "imag"})

# The end of the process; the time as a number.
EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit"})
CLOCKS = frozenset({"time.time", "time.perf_counter", "time.monotonic", "timeit.default_timer"})
