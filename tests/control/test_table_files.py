"""Which readings of tables are deleted."""

from __future__ import annotations

from anabranch.control.table_files import release_versions, table_file
from anabranch.storage.filesystem import MemoryFilesystem


def test_old_readings_that_nobody_names_are_deleted() -> None:
    disk = MemoryFilesystem()
    ours = [table_file("t"), table_file("t-2"), *(table_file("t", batch) for batch in (1, 2, 3, 10))]
    ours += [table_file("t", 2, epoch=7), "tables/t@1.arrow"]
    foreign = ["tables/t-1.arrow", "tables/t@x.arrow", "tables/t@1.arrow.bak", "tables/@1.arrow", "tables/notes"]
    for path in ours + foreign:
        disk.put(path, [b"x"])
    release_versions(disk, {table_file("t", 2)}, before=3)
    assert {f"tables/{name}" for name in disk.list("tables")} == {*ours, *foreign} - {table_file("t", 1), *ours[-2:]}
