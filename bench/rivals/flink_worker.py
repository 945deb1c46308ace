"""Runs SQL statements in a Flink of its own: `<python of Flink's environment> -m bench.rivals.flink_worker --spec <file>`.

The last statement is an INSERT, and is what is timed. This is the one file that runs in Flink's environment, which has
nothing of ours: it imports the standard library and pyflink, of which it uses no more than the gateway to Java. One Java
process holds a mini-cluster of one task manager, whose REST interface on the loopback tells what became of the job. Prints a
line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

POLL_S = 0.5
ENDED = ("FINISHED", "FAILED", "CANCELED")


def run(statements: list[str], settings: dict[str, str], conf: str, limit_s: float) -> dict[str, Any]:
    os.environ |= {"FLINK_CONF_DIR": conf, "FLINK_LOG_DIR": conf}
    from pyflink.java_gateway import get_gateway  # type: ignore[import-not-found]  # of Flink's environment

    flink = get_gateway().jvm.org.apache.flink
    local = flink.runtime.minicluster
    configuration = flink.configuration.GlobalConfiguration.loadConfiguration()
    slots = int(settings["parallelism.default"])
    builder = local.MiniClusterConfiguration.Builder().setConfiguration(configuration)
    cluster = local.MiniCluster(builder.setNumTaskManagers(1).setNumSlotsPerTaskManager(slots).build())
    cluster.start()
    try:
        address = cluster.getRestAddress().get().toString()
        tables = flink.table.api
        environment = tables.TableEnvironment.create(tables.EnvironmentSettings.inStreamingMode())
        rest = {"rest.address": "localhost", "rest.port": address.rsplit(":", 1)[1]}
        for name, value in {**settings, **rest, "execution.target": "remote"}.items():
            environment.getConfig().set(name, value)
        for statement in statements[:-1]:
            environment.executeSql(statement)
        plan = environment.executeSql(f"EXPLAIN PLAN FOR {statements[-1]}").collect().next().getField(0)
        job = environment.executeSql(statements[-1]).getJobClient().get()
        return {"plan": plan, **_watch(f"{address}/jobs/{job.getJobID().toString()}", job, limit_s)}
    finally:
        cluster.close()


def _watch(address: str, job: Any, limit_s: float) -> dict[str, Any]:
    """Follows a job to its end, or cancels it; `passed` has how many rows had left the sources at what time."""
    passed: list[tuple[float, int]] = []
    limit = time.time() + limit_s
    while True:
        found = _get(address)
        sources = [v for v in found["vertices"] if v["name"].startswith("Source")]
        passed.append((time.time(), sum(v["metrics"]["write-records"] for v in sources)))
        over = found["state"] not in ENDED and time.time() > limit
        if found["state"] in ENDED or over:
            break
        time.sleep(POLL_S)
    readers = [s for v in sources for s in _get(f"{address}/vertices/{v['id']}/subtasktimes")["subtasks"]]
    running = [at for r in readers if (at := r["timestamps"]["RUNNING"])]  # 0 while a reader is not yet up
    checkpoints = _get(f"{address}/checkpoints")
    error = _get(f"{address}/exceptions")["exceptionHistory"]["entries"][:1] if found["state"] == "FAILED" else None
    if over:
        job.cancel().get()
    return {
        "state": "timeout" if over else found["state"], "error": error, "passed": passed,
        "began_s": min(running, default=found["start-time"]) / 1e3,
        "ended_s": passed[-1][0] if over else found["end-time"] / 1e3,
        "checkpoints": checkpoints["counts"]["completed"], "state_bytes": checkpoints["summary"]["state_size"]["max"],
    }  # fmt: skip


def _get(address: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=30) as answer:
        return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", required=True, help="a file with a JSON object: statements, settings, conf, limit_s")
    print(json.dumps(run(**json.loads(Path(parser.parse_args().spec).read_text()))))


if __name__ == "__main__":
    main()
