"""What a host is short of, as Linux tells it."""

import os
import resource
import socket
import sys
from contextlib import ExitStack

import pytest

from jobqueue.worker.monitor import troubles
from jobqueue.worker.monitor.troubles import Resource, descriptors, disk, memory, short_of

MB = 2**20
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def proc(tmp_path):
    write(tmp_path / "proc/meminfo", "MemTotal:       8192 kB\nMemFree: 1 kB\nMemAvailable:    4096 kB\n")
    return tmp_path / "proc"


def group(folder, names, limit, usage, cache):
    for name, text in zip(names, (limit, usage), strict=True):
        write(folder / name, f"{text}\n")
    write(folder / "memory.stat", cache)


V2 = ("memory.max", "memory.current")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_the_memory_of_the_host_is_what_programs_can_get(proc, tmp_path):
    assert list(memory(proc, tmp_path)) == [Resource("memory", 4096 * 1024, 8192 * 1024, "host")]


def test_of_control_groups_of_version_2_each_one_with_a_limit_counts_without_the_cache_of_files(proc, tmp_path):
    write(proc / "self/cgroup", "0::/outer/inner\n")
    group(tmp_path / "outer/inner", V2, "max", 5, "inactive_file 1\n")
    group(tmp_path / "outer", V2, 1000, 900, "anon 1\ninactive_file 150\nactive_file 7\n")
    assert list(memory(proc, tmp_path))[1:] == [Resource("memory", 257, 1000, "cgroup")]


def test_in_a_container_the_own_group_is_the_root_whatever_its_path_outside(proc, tmp_path):
    write(proc / "self/cgroup", "0::/\n")
    group(tmp_path, V2, 1000, 1100, "inactive_file 0\n")
    assert list(memory(proc, tmp_path))[1:] == [Resource("memory", 0, 1000, "cgroup")]
    write(proc / "self/cgroup", "5:memory:/docker/abc\n3:cpu,cpuacct:/x\n")
    group(tmp_path / "memory", V1, 500, 400, "total_inactive_file 10\n")
    assert list(memory(proc, tmp_path))[1:] == [Resource("memory", 110, 500, "cgroup")]


def test_a_group_of_version_1_without_a_limit_is_none(proc, tmp_path):
    write(proc / "self/cgroup", "5:memory:/\n")
    group(tmp_path / "memory", V1, 9223372036854771712, 400, "total_inactive_file 10\n")
    assert len(list(memory(proc, tmp_path))) == 1


def test_without_proc_nothing_is_found(tmp_path):
    assert list(memory(tmp_path / "none", tmp_path)) == []
    assert list(descriptors(os.getpid(), tmp_path / "none")) == []


def test_broken_files_are_no_error(proc, tmp_path, monkeypatch):
    write(proc / "self/cgroup", "nonsense\n0::\n")
    write(proc / "sys/fs/file-nr", "a b c\n")
    monkeypatch.setattr(troubles, "memory", lambda: memory(proc, tmp_path))
    monkeypatch.setattr(troubles, "descriptors", lambda pid: descriptors(pid, proc))
    assert short_of(1) == {}


@pytest.mark.parametrize(
    ("free", "limit", "was", "short"),
    [
        (12 * MB, 512 * MB, False, True),
        (26 * MB, 512 * MB, False, False),
        (26 * MB, 512 * MB, True, True),
        (40 * MB, 512 * MB, True, False),
        # A large host is not short of memory with 1 GB of it.
        (1024 * MB, 256 * 1024 * MB, False, False),
        (200 * MB, 256 * 1024 * MB, False, True),
    ],
)
def test_what_is_short_stays_short_until_clearly_more_is_free(free, limit, was, short):
    assert Resource("memory", free, limit, "host").is_short(was_short=was) is short


@linux
def test_open_sockets_of_a_process_count_against_its_own_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert "descriptors" not in short_of(os.getpid())
    used = len(os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
        with ExitStack() as opened:
            for _ in range(36):
                opened.enter_context(socket.socket())
            found = short_of(os.getpid())["descriptors"]
            assert (found.limit, found.of) == (used + 40, "process")
            assert 0 < found.free <= 5
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "descriptors" not in short_of(os.getpid())


@linux
def test_the_descriptors_of_the_whole_host_and_its_disk_are_known():
    assert [one.of for one in descriptors(os.getpid())] == ["process", "host"]
    (one,) = disk()
    assert 0 < one.free <= one.limit


def test_a_process_that_has_ended_is_short_of_no_descriptors():
    assert [one.of for one in descriptors(2**22 + 1) if one.of == "process"] == []
