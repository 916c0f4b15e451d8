"""Write docs/rules.md from the rules themselves: python docs/make_rules.py"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from retrofit.rules.documentation import page  # noqa: E402

if __name__ == "__main__":
    (ROOT / "docs" / "rules.md").write_text(page(), encoding="utf-8")
