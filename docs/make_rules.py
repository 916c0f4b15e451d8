"""Write docs/rules.md and docs/refusals.md from the rules themselves: python docs/make_rules.py"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from retrofit.rules import documentation  # noqa: E402
from retrofit.rules.refusals import worked_examples  # noqa: E402

if __name__ == "__main__":
    (ROOT / "docs" / "rules.md").write_text(documentation.page(), encoding="utf-8")
    (ROOT / "docs" / "refusals.md").write_text(worked_examples.page(), encoding="utf-8")
