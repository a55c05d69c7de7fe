"""How long every item takes in full, seeds 0-9, in seconds of one core."""

from __future__ import annotations

SECONDS: dict[str, int] = {
    "table1": 94,
    "fig2a": 132,
    "fig2b": 140,
    "fig2c": 88,
    "fig3a": 40,
    "fig3b": 49,
    "fig3c": 60,
    "fig4a": 33,
    "fig4b": 26,
    "fig4c": 56,
    "fig4d": 95,
    "fig5a": 25,
    "fig5b": 26,
    "fig6a": 29,
    "fig6b": 41,
    "perdomo2020": 20,
    "mendler2020": 40,
    "miller2021": 60,
    "izzo2021": 60,
    "izzo2022": 60,
    "brown2022": 60,
    "ray2022": 60,
    "mofakhami2023": 60,
    "jin2024": 40,
    "lin2024": 60,
    "cyffers2024": 60,
    "liu2024": 60,
    "khorsandi2025": 60,
}
