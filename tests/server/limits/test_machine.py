"""The memory and the descriptors that a process may use."""

from pathlib import Path

import pytest

from topics.server.limits.os_limits import BASE_DESCRIPTORS, divide, memory_bytes

GIB = 1 << 30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def test_without_cgroups_the_machine_decides(tmp_path: Path):
    assert memory_bytes(tmp_path) > GIB // 4


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/memory.max": "1048576"},
        {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/memory.max": "1048576"},
        {"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "1048576"},
        {"proc/self/cgroup": "0::/of/the/host", "sys/fs/cgroup/memory.max": "1048576"},
        {"proc/self/cgroup": "4:cpu:/\n3:memory:/x", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1048576"},
        {"proc/self/cgroup": "3:cpu,memory:/x", "sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576"},
        {
            "proc/self/cgroup": "3:memory:/x\n0::/x",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1048576",
        },
    ],
)
def test_the_smallest_limit_of_the_cgroups_holds(tmp_path: Path, files: dict[str, str]):
    assert memory_bytes(write(tmp_path, files)) == 1 << 20


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "max"},
        {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": ""},
        {"proc/self/cgroup": "0::/../../etc", "etc/memory.max": "1"},
        {"proc/self/cgroup": "2:cpu:/a", "sys/fs/cgroup/a/memory.max": "1"},
    ],
)
def test_a_cgroup_without_a_limit_changes_nothing(tmp_path: Path, files: dict[str, str]):
    assert memory_bytes(write(tmp_path, files)) == memory_bytes(tmp_path / "empty")


@pytest.mark.parametrize("limit", [64, 200, 300, 1024, 4096, 20_000, 1 << 20])
def test_all_descriptors_are_given_out_once(limit: int):
    found = divide(limit)
    assert found.segment_files >= 8
    assert found.connections >= 8
    assert found.connections + found.segment_files + found.refused + BASE_DESCRIPTORS == max(limit, 88)
    if limit >= 300:
        assert found.connections > limit // 2
