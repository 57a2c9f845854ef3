"""Temporary folders are deleted when their process ends, even if it is killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.envs.osworld.cleanup import delete_at_exit
from arpo.errors import UserError
from processes import wait_until

CODE = """
import sys, tempfile, time
from pathlib import Path
from arpo.envs.osworld.cleanup import delete_at_exit
for _ in range(2):
    folder = Path(tempfile.mkdtemp(prefix="with spaces * ", dir=sys.argv[1]))
    delete_at_exit(folder)
    (folder / "inside").mkdir()
    (folder / "inside" / "file").write_text("x")
print(flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_folders_are_deleted_with_their_process(tmp_path, number):
    keep = tmp_path / "with spaces * keep"
    keep.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert len(list(Path(tmp_path).iterdir())) == 3
    process.send_signal(number)
    process.communicate()
    assert wait_until(lambda: list(Path(tmp_path).iterdir()) == [keep])


def test_a_path_with_a_line_break_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"TMPDIR: .* contains a line break"):
        delete_at_exit(tmp_path / "a\nb" / "c")
