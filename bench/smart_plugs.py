"""The six queries over smart plugs of paper 004, section 8.1, as docs/sql.md has them. All slide every second."""

from __future__ import annotations

PLUGS = """CREATE STREAM plugs (plug BIGINT, household BIGINT, load DOUBLE, ts TIMESTAMP) TIME ts;"""

QUERIES: dict[str, str] = {
    "CQ1": """SELECT p.plug, COUNT(*) AS high
FROM plugs [RANGE 5 MINUTES] p
JOIN (SELECT plug, MAX(load) AS most FROM plugs [RANGE 5 MINUTES] GROUP BY plug) m ON p.plug = m.plug
WHERE p.load > 0.9 * m.most
GROUP BY p.plug""",
    "CQ2": """SELECT p.plug, COUNT(*) AS high
FROM plugs [RANGE 5 MINUTES] p
JOIN (SELECT plug, AVG(load) AS mean FROM plugs [RANGE 5 MINUTES] GROUP BY plug) m ON p.plug = m.plug
WHERE p.load > m.mean
GROUP BY p.plug""",
    "CQ3": """SELECT f.plug, f.most AS most_5, o.most AS most_1, f.mean AS mean_5, o.mean AS mean_1
FROM (SELECT plug, MAX(load) AS most, AVG(load) AS mean FROM plugs [RANGE 5 MINUTES] GROUP BY plug) f
JOIN (SELECT plug, MAX(load) AS most, AVG(load) AS mean FROM plugs [RANGE 1 MINUTE] GROUP BY plug) o ON f.plug = o.plug""",
    "CQ4": """SELECT f.plug, f.mean AS mean_5, o.mean AS mean_1
FROM (SELECT plug, AVG(load) AS mean FROM plugs [RANGE 5 MINUTES] GROUP BY plug) f
JOIN (SELECT plug, AVG(load) AS mean FROM plugs [RANGE 1 MINUTE] GROUP BY plug) o ON f.plug = o.plug""",
    "CQ5": """SELECT t.household, MAX(t.total) AS most
FROM (SELECT household, plug, SUM(load) AS total FROM plugs [RANGE 5 MINUTES] GROUP BY household, plug) t
GROUP BY t.household""",
    "CQ6": """SELECT o.plug, o.mean AS mean_1, t.mean AS mean_3, f.mean AS mean_5
FROM (SELECT plug, AVG(load) AS mean FROM plugs [RANGE 1 MINUTE] GROUP BY plug) o
JOIN (SELECT plug, AVG(load) AS mean FROM plugs [RANGE 3 MINUTES] GROUP BY plug) t ON o.plug = t.plug
JOIN (SELECT plug, AVG(load) AS mean FROM plugs [RANGE 5 MINUTES] GROUP BY plug) f ON t.plug = f.plug""",
}
