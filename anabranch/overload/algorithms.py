"""The paper's algorithms by name, all of one contract."""

from __future__ import annotations

from anabranch.overload.allocation import Algorithm
from anabranch.overload.grepp import grepp
from anabranch.overload.heuristics import e_best_hjp, equal_hj, global_hjpr, s_best_hjp
from anabranch.overload.jaqpot import jaqpot

HEURISTICS: dict[str, Algorithm] = {
    "EqualHJ": equal_hj, "GlobalHJPR": global_hjpr, "EBestHJP": e_best_hjp, "SBestHJP": s_best_hjp,
}  # fmt: skip
ALGORITHMS: dict[str, Algorithm] = {**HEURISTICS, "GrePP": grepp, "JAQPOT": jaqpot}
