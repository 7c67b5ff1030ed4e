"""Cores and memory by cgroup: the files as the kernel writes them."""

from __future__ import annotations

import pytest

from headrace.config import cpu


@pytest.mark.parametrize(("text", "cores"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("50000 100000\n", 0.5)])
def test_quota_of_cgroup_v2(tmp_path, text, cores):
    (tmp_path / "cpu.max").write_text(text)
    assert cpu._cgroup_quota(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("200000", 2.0)])
def test_quota_of_cgroup_v1(tmp_path, quota, cores):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert cpu._cgroup_quota(tmp_path) == cores


def test_usable_cores_follow_the_quota(tmp_path, monkeypatch):
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    monkeypatch.setattr(cpu, "CGROUP", tmp_path)
    assert cpu.usable_cores() == 1


def test_every_group_above_may_set_a_limit(tmp_path, monkeypatch):
    (tmp_path / "cgroup").write_text("0::/slice/unit\n")
    (tmp_path / "slice" / "unit").mkdir(parents=True)
    (tmp_path / "slice" / "cpu.max").write_text("100000 100000\n")
    monkeypatch.setattr(cpu, "CGROUP", tmp_path)
    monkeypatch.setattr(cpu, "PROC_CGROUP", tmp_path / "cgroup")
    assert cpu.own_cgroups() == [tmp_path / "slice" / "unit", tmp_path / "slice", tmp_path]
    assert cpu.usable_cores() == 1


def test_no_cgroup(tmp_path):
    assert cpu._cgroup_quota(tmp_path) is None
    assert cpu._cgroup_memory_left(tmp_path) is None


def test_memory_left_counts_cache_that_can_go(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 200000\n")
    assert cpu._cgroup_memory_left(tmp_path) == 500000
    monkeypatch.setattr(cpu, "CGROUP", tmp_path)
    assert cpu.available_memory() == 500000


def test_no_memory_limit(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu._cgroup_memory_left(tmp_path) is None
