"""Ten minutes of twenty smart plugs, a reading every five seconds, one file of JSON lines for each minute."""

import json
import os
from datetime import datetime, timedelta

import numpy as np

START, PLUGS, MINUTES = datetime(2026, 3, 2, 18, 0), 20, 10

rng = np.random.default_rng(3)
os.makedirs("readings", exist_ok=True)
for minute in range(MINUTES):
    with open(f"readings/{minute:03d}.jsonl", "w", encoding="utf-8") as file:
        for second in range(minute * 60, minute * 60 + 60, 5):
            for plug in range(PLUGS):
                watts = 40 + 30 * np.sin(second / 90 + plug) + rng.normal(0, 4) + 900 * (plug == 7 and second > 400)
                reading = {"plug": plug, "household": plug // 5, "watts": round(float(watts), 1)}
                file.write(json.dumps(reading | {"ts": f"{START + timedelta(seconds=second)}"}) + "\n")
print(f"{MINUTES} files in readings/")
