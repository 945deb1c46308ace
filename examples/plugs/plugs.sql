CREATE STREAM plugs (plug BIGINT, household BIGINT, watts DOUBLE, ts TIMESTAMP) TIME ts FROM 'readings/*.jsonl';

-- Every minute: plugs that take more than three times what the plugs of their household take on average.
CREATE QUERY unusual AS
SELECT RESULT_TIME AS at, p.household, p.plug, p.mean AS plug_mean, h.mean AS household_mean
FROM (SELECT household, plug, AVG(watts) AS mean FROM plugs [RANGE 1 MINUTE] GROUP BY household, plug SLIDE 1 MINUTE) AS p
JOIN (SELECT household, AVG(watts) AS mean FROM plugs [RANGE 5 MINUTES] GROUP BY household SLIDE 1 MINUTE) AS h
  ON p.household = h.household
WHERE p.mean > 3 * h.mean;

-- Every five minutes: what each household takes.
CREATE QUERY households AS
SELECT RESULT_TIME AS at, household, COUNT(*) AS readings, AVG(watts) AS mean, MAX(watts) AS most
FROM plugs [RANGE 5 MINUTES]
GROUP BY household
SLIDE 5 MINUTES;
