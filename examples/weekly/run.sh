#!/bin/sh
# Weeks of a campaign, as cron would run them, one process a command: sh run.sh WEEKS
set -eu
cd "$(dirname "$0")"
weeks=${1:-4}
[ -e prices.db ] || profl campaign new problem.py:problem --db prices.db --clients stores.csv --samples 7 --deadline 10 --name juice
for week in $(seq "$weeks"); do
  profl campaign ask --db prices.db --csv next_week.csv
  python sales.py next_week.csv sales.csv   # the week goes by
  profl campaign tell --db prices.db --csv sales.csv
done
profl campaign status --db prices.db
profl campaign page --db prices.db --out page.html
python sales.py --worth next_week.csv
