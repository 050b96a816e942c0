"""What programs share: whole files on a full disk, locks, settings of the process, progress."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("filelock", reason="needs the extra `neighbors`")

from neuralsort.runtime import files, machine, process
from neuralsort.runtime.progress import Progress

# -- files -----------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_draft_and_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint.safetensors"
    files.replace(path, b"old")

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    for _ in range(3):
        with pytest.raises(OSError, match=r"No space left.*checkpoint\.safetensors") as caught:
            files.replace(path, b"new")
        assert caught.value.errno == errno.ENOSPC
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_really_full_is_told(tmp_path, monkeypatch):
    full = Path("/dev/full").open
    monkeypatch.setattr(type(tmp_path), "open", lambda self, mode: full(mode))
    with pytest.raises(OSError, match=r"No space left.*result"):
        files.replace(tmp_path / "result", b"x" * 10_000)


def test_drafts_of_killed_writers_are_removed_by_whoever_comes_next(tmp_path):
    draft = tmp_path / f".checkpoint.safetensors.{'a' * 32}"
    for one in (draft, tmp_path / ".other", tmp_path / "result"):
        one.write_text("left")
    with files.alone_in(tmp_path):
        names = {one.name for one in tmp_path.iterdir()}
    assert names == {".lock", ".other", "result"}


def test_a_folder_has_one_writer_and_the_lock_dies_with_it(tmp_path):
    script = (
        "import sys, os; from pathlib import Path; from neuralsort.runtime import files\n"
        "with files.alone_in(Path(sys.argv[1])):\n    print('in', flush=True); input(); os._exit(9)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"in\n"
    with pytest.raises(files.Busy, match="Another process is at work"), files.alone_in(tmp_path):
        pass
    holder.communicate(b"\n")
    with files.alone_in(tmp_path):
        pass


# -- settings --------------------------------------------------------------------------------------


def test_settings_are_added_to_what_is_there():
    added = process.settings({})
    assert added["OMP_WAIT_POLICY"] == "PASSIVE"
    assert added["ATEN_CPU_CAPABILITY"] == "avx2"
    assert "glibc.malloc.mmap_max=0" in added["GLIBC_TUNABLES"]
    given = {"OMP_WAIT_POLICY": "ACTIVE", "GLIBC_TUNABLES": "glibc.malloc.mmap_max=7"}
    added = process.settings(given)
    assert "OMP_WAIT_POLICY" not in added
    assert added["GLIBC_TUNABLES"].startswith("glibc.malloc.mmap_max=7:glibc.malloc.hugetlb=1")
    assert "mmap_max=0" not in added["GLIBC_TUNABLES"]
    assert process.settings(given | added) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="settings are of Linux")
def test_a_program_starts_again_once_with_its_settings_and_its_arguments(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys\nfrom neuralsort.runtime import process\n"
        "print('here', flush=True)\nprocess.restart_with_settings()\n"
        "print(os.environ['GLIBC_TUNABLES'], os.environ['OMP_WAIT_POLICY'], sys.argv[1:])\n"
    )
    plain = {
        name: value
        for name, value in os.environ.items()
        if name not in (process.DONE, "GLIBC_TUNABLES", "OMP_WAIT_POLICY")
    }
    command = [sys.executable, script, "a b", "--n", "3"]
    done = subprocess.run(command, capture_output=True, text=True, env=plain, check=True)
    assert done.stdout.count("here") == 2
    assert "hugetlb=1" in done.stdout
    assert "PASSIVE ['a b', '--n', '3']" in done.stdout
    kept = plain | {process.DONE: "1", "GLIBC_TUNABLES": "", "OMP_WAIT_POLICY": "mine"}
    done = subprocess.run(command, capture_output=True, text=True, env=kept, check=True)
    assert done.stdout.count("here") == 1
    assert "mine" in done.stdout


def test_the_entry_loads_nothing_large_before_it_starts_again():
    script = (
        "import sys\nfrom neuralsort.experiments import __main__\n"
        "print({'torch', 'numpy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


# -- the rest --------------------------------------------------------------------------------------


def test_memory_is_a_plausible_number():
    found = machine.available_memory()
    assert found is None or 10**7 < found < 10**14


def test_progress_counts_what_starts(capsys):
    with Progress("speed", 2) as progress:
        progress.step("first")
        progress.step("second")
    said = capsys.readouterr().err
    assert "speed  1/2  first" in said
    assert "speed  2/2  second" in said
