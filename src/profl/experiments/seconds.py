"""About how long every item takes in full, seeds 0-9, in seconds: four at a time on four cores."""

from __future__ import annotations

SECONDS: dict[str, int] = {
    "table1": 60,
    "fig2a": 125,
    "fig2b": 185,
    "fig2c": 145,
    "fig3a": 55,
    "fig3b": 55,
    "fig3c": 65,
    "fig4a": 35,
    "fig4b": 30,
    "fig4c": 65,
    "fig4d": 115,
    "fig5a": 20,
    "fig5b": 20,
    "fig6a": 25,
    "fig6b": 40,
    "perdomo2020": 35,
    "mendler2020": 30,
    "miller2021": 165,
    "izzo2021": 250,
    "izzo2022": 165,
    "brown2022": 30,
    "ray2022": 30,
    "mofakhami2023": 235,
    "jin2024": 30,
    "lin2024": 25,
    "cyffers2024": 10,
    "liu2024": 10,
    "khorsandi2025": 75,
}
