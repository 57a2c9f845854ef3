from arpo.config import Config
from arpo.evaluation.finished_episodes import evaluation_key
from arpo.storage.published_weights import Probe, publishing, write_probe
from arpo.testing import task


def test_the_key_of_an_evaluation_on_servers_depends_on_the_published_weights(tmp_path):
    """The same weights in another folder, for example of a resumed run, have the same key."""

    def key(version, logprob):
        probe = Probe(token_ids=(1, 2), images=(), answer=(3,), logprobs=(logprob,))
        with publishing(tmp_path, version) as folder:
            write_probe(folder, probe)
        return evaluation_key(Config(), {"train": [task("a")]}, folder)

    assert key(1, -0.5) == key(2, -0.5) != key(3, -0.25)
