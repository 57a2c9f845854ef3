"""A stand-in for an interpreter with vLLM, for commands that start servers: `install(folder, behaviour)`.

It reports a CPU build of vLLM. Its servers are those of fake_server.py.
"""

import sys
from pathlib import Path

_PROGRAM = """\
#!{python}
import sys
sys.path.insert(0, {support!r})
if sys.argv[1] == "-I":
    print('[null, "0.32.0", null]')
else:
    import fake_server
    words = sys.argv
    fake_server.main(words[words.index("--host") + 1], words[words.index("--port") + 1], {behaviour!r})
"""


def install(folder, behaviour=""):
    """The path of the interpreter, for engine.python."""
    program = Path(folder) / "fake-vllm-python"
    support = str(Path(__file__).parent)
    program.write_text(_PROGRAM.format(python=sys.executable, support=support, behaviour=behaviour))
    program.chmod(0o755)
    return str(program)
