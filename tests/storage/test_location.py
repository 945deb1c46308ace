from __future__ import annotations

import os
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from anabranch.errors import LocationError
from anabranch.storage.filesystem import ArrowFilesystem, LocalFilesystem
from anabranch.storage.location import KNOWN, located, without_secrets


def test_local_places_are_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = LocalFilesystem(str(tmp_path / "a" / "b"))
    whole = str(tmp_path / "a" / "b")
    assert located("a/b") == located(Path("a/b")) == located(whole) == located(f"{whole}/") == expected
    assert located(f"file://{whole}") == located(f"file:{whole}") == expected
    assert located((pafs.LocalFileSystem(), whole)) == expected
    assert located((pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), "a/b")) == expected
    assert located(tmp_path).below("a").below("b") == expected
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["plain", "with space", "a:b", "C:x", "x/s3:/y", "./s3:/b"])
def test_what_is_a_path(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    assert located(path) == LocalFilesystem(path)


def test_spaces_and_signs_in_a_uri(tmp_path):
    assert located(f"file://{tmp_path}/a%20b") == LocalFilesystem(f"{tmp_path}/a b")


def test_a_bucket(bucket):
    folder = located(bucket.uri("some/folder"))
    assert isinstance(folder, ArrowFilesystem)
    assert folder.is_object_store
    folder.below("q").put("f/a", [b"x"])
    assert bucket.paths() == ["some/folder/q/f/a"]
    assert folder.folders("") == ["q"]
    same = located((bucket.filesystem, f"{bucket.name}/some/folder"))
    assert same.get("q/f/a").to_pybytes() == b"x"
    within = located((pafs.SubTreeFileSystem(f"{bucket.name}/some", bucket.filesystem), "folder"))
    assert within.get("q/f/a").to_pybytes() == b"x"
    assert str(folder) == str(same) == str(within) == f"s3://{bucket.name}/some/folder"


def test_a_container_of_azure_is_written_as_the_hint_says():
    assert "abfs://account@container/x" in KNOWN
    folder = located("abfs://account@container/x")
    assert str(folder) == "abfs://container/x"
    assert folder.filesystem.__reduce__()[1][0]["account_name"] == "account"


def test_secrets_are_not_shown(bucket):
    assert without_secrets(bucket.uri("x")) == f"s3://{bucket.name}/x"
    assert without_secrets("abfs://account@container/x") == "abfs://account@container/x"


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("s4://b/x", "s4://b/x: there is no filesystem for s4: give a path, a URI like"),
        ("s4:/b/x", "no filesystem for s4"),
        ("s3a://b/x", "write s3://"),
        ("http://host/x", "no filesystem for http"),
        ("mock:///x", "keeps nothing"),
        ("s3://", "the root of s3 is no place: name a bucket"),
        ("", "empty path"),
        ("hdfs://nowhere:1/x", "hdfs://nowhere:1/x cannot be reached"),
        (17, "17 is no place: give a path"),
        ((1, "x"), "is no place"),
        (("s3", "b", "x"), "is no place"),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, place, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LocationError) as refused:
        located(place)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert os.listdir(tmp_path) == []


def test_the_root_of_a_store_is_refused(s3_port, bucket):
    with pytest.raises(LocationError, match="name a bucket"):
        located((bucket.filesystem, "/"))
