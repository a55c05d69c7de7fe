"""The ProFL paper's claims with profl's parts and as printed, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from profl.results.cells import verdict
from profl_papers.profl2024.printed import SUFFIX


def side_by_side(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every claim of the paper's items with both verdicts, a row each; nothing where no item is there in both forms.

    A claim that only one form makes stands alone.
    """
    by_name = {result["item"]: result for result in results}
    rows = []
    for name, twin in [(name, by_name.get(name + SUFFIX)) for name in by_name]:
        if twin is None:
            continue
        forms = [{claim["claim"]: claim for claim in form["claims"]} for form in (by_name[name], twin)]
        for text in dict.fromkeys([*forms[0], *forms[1]]):
            row = {"item": name, "claim": text}
            for label, form in zip(("ours", "as printed"), forms, strict=True):
                claim = form.get(text)
                row |= {label: claim and claim["measured"], f"{label} holds": claim and verdict(claim)}
            row["expected"] = next(form[text]["expected"] for form in forms if text in form)
            rows.append(row)
    return rows
