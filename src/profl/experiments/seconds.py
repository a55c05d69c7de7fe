"""About how long every item takes in full, seeds 0-9, in seconds as measured on a busy machine: an upper bound."""

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
    "perdomo2020": 150,
    "mendler2020": 70,
    "miller2021": 300,
    "izzo2021": 500,
    "izzo2022": 200,
    "brown2022": 200,
    "ray2022": 110,
    "mofakhami2023": 1000,
    "jin2024": 200,
    "lin2024": 460,
    "cyffers2024": 40,
    "liu2024": 15,
    "khorsandi2025": 170,
}
