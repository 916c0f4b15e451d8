"""RF601 local-rank-flag: a parser that knows one of the two spellings in which a launcher passes the local rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project

RULE = CATALOG["RF601"]
INVALID = [
    """\
model = DDP(Net())
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
""",
    """\
model = DDP(Net())
parser.add_argument("--local-rank", dest="local_rank", type=int)
""",
]
VALID = [
    """\
model = DDP(Net())
parser.add_argument("--local_rank", "--local-rank", type=int, default=0)
args = parser.parse_args()
""",
    # an argument for each spelling
    """\
model = DDP(Net())
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--local-rank", dest="local_rank", type=int, default=0)
""",
    # the launcher passes it in the environment alone
    """\
model = DDP(Net())
local_rank = int(os.environ["LOCAL_RANK"])
parser.add_argument("--rank", type=int, default=0)
""",
    # not a distributed script
    """\
parser.add_argument("--local_rank", type=int, default=0)
""",
]
OTHER = {"--local_rank": "--local-rank", "--local-rank": "--local_rank"}


def find(project: Project) -> Iterator[Finding]:
    if not project.distribution.is_by_hand:
        return
    places = {}
    for node, scope in reached_calls(project.analysis):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            for argument in node.args:
                name = argument.value if isinstance(argument, ast.Constant) else None
                if isinstance(name, str) and name in OTHER:
                    places[name] = (argument, scope.source)
    if len(places) != 1:
        return
    ((spelling, (argument, source)),) = places.items()
    _, end = source.span(argument)
    quote = source.segment(argument)[-1]
    edits = [Edit(source, end, end, f", {quote}{OTHER[spelling]}{quote}")]
    yield found(RULE, source, argument, f"the parser refuses {OTHER[spelling]}", edits)
