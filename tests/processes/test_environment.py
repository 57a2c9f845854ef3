"""The allow list of environment variables for processes that handle untrusted data."""

from arpo.processes.environment import clean_environment, without_secrets

HOST = {
    "PATH": "/usr/bin",
    "LC_ALL": "C.UTF-8",
    "https_proxy": "http://proxy:3128",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": "/src",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "eu-1",
    "HF_TOKEN": "secret",
    "GITHUB_TOKEN": "secret",
    "MY_PATH": "private",
}


def test_unknown_variables_are_left_out():
    assert clean_environment(environment=HOST) == {
        "PATH": "/usr/bin",
        "LC_ALL": "C.UTF-8",
        "https_proxy": "http://proxy:3128",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": "/src",
    }


def test_a_caller_can_add_names_and_patterns():
    added = clean_environment("AWS_*", "HF_TOKEN", environment=HOST)
    assert added.keys() - clean_environment(environment=HOST).keys() == {
        "AWS_SECRET_ACCESS_KEY",
        "AWS_REGION",
        "HF_TOKEN",
    }


def test_programs_of_the_user_get_all_but_arpo_s_own_variables():
    tokens = {"ARPO_HOST_TOKEN": "secret", "ARPO_ENGINE_KEY": "secret"}
    assert without_secrets({**HOST, **tokens}) == HOST
