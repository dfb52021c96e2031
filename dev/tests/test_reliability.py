"""The page of what was broken says what the rigs found, misses included."""

import unittest

import reliability

FIGURES = {
    "chaos": {
        "runs": 12,
        "attempts": 34,
        "rows": 1769262,
        "uploads": 0,
        "faults": {"worker killed": 4, "S3: lost reply": 1},
    },
    "job-chaos First": {"jobs": 26, "serial": 20, "twice": 1, "accepted by files": 2, "a worker killed": 3},
    "job-chaos Everything": {"jobs": 40, "serial": 0, "twice": 0, "accepted by files": 4, "S3: slow": 0},
    "fuzz-arrow-reader": {"inputs": 245276, "panics": 0},
    "fuzz-configuration": {"inputs": 1030, "panics": 0},
    "kill-points Part 2": {"Part 2": [1, 1]},
    "kill-points cut off": {"cut off": [1, 0]},
    "s3 faults that pass": {"Part: lost reply": [2, 2]},
    "s3 faults that stay": {"Part: lost reply": [1, 1], "Create: 403 AccessDenied": [2, 2]},
    "clickhouse faults cut": {"cut": [188, 188]},
    "memory wide": {"what": "400 columns", "output": "Parquet, none", "peak_mib": 225, "limit_mib": 256},
}


class Page(unittest.TestCase):
    def test_scores_of_one_rig_are_counted_together(self):
        page = reliability.page(FIGURES)
        for line in (
            "| cut off | 1 / 0 |",
            "| **all** | **2 / 1** |",
            "| Part: lost reply | 3 / 3 |",
            "| **all** | **188 / 188** |",
            "12 runs in 34 attempts, 1,769,262 rows compared",
            "| worker killed | 4 |",
            "66 jobs accepted by a provider on a disk: 0 lost, 1 calls of a webhook more than once, 20",
            "| a worker killed | 3 |",
            "| S3: slow | 0 |",
            "| arrow-reader | 245,276 | 0 |",
            "| 400 columns | Parquet, none | 225 MiB | 256 MiB |",
        ):
            self.assertIn(line, page)


if __name__ == "__main__":
    unittest.main()
