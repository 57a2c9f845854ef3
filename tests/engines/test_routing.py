from arpo.engines.routing import Router


def test_an_episode_stays_on_its_server() -> None:
    router = Router[str]()
    assert [router.choose(name, ["a", "b"]) for name in ("one", "two", "three")] == ["a", "b", "a"]
    assert [router.choose(name, ["a", "b"]) for name in ("three", "two", "one")] == ["a", "b", "a"]
    assert (router.episodes_on("a"), router.episodes_on("b")) == (2, 1)


def test_a_new_episode_goes_to_the_server_with_the_fewest() -> None:
    router = Router[str]()
    for name in ("one", "two", "three"):
        router.choose(name, ["a", "b"])
    router.release("one")
    router.release("three")
    assert router.choose("four", ["a", "b"]) == "a"
    router.release("unknown")


def test_episodes_of_a_lost_server_move_and_stay() -> None:
    router = Router[str]()
    assert [router.choose(name, ["a", "b", "c"]) for name in ("one", "two", "three")] == ["a", "b", "c"]
    assert router.choose("two", ["a", "c"]) == "a"
    assert router.choose("one", ["b", "c"]) == "b"
    assert router.choose("two", ["a", "b", "c"]) == "a"


def test_after_an_update_of_weights_episodes_are_counted_anew() -> None:
    router = Router[str]()
    for name in ("one", "two", "three"):
        router.choose(name, ["a"])
    router.forget_all()
    router.release("one")  # it ended during the update
    assert (router.episodes_on("a"), router.episodes_on("b")) == (0, 0)
    assert [router.choose(name, ["a", "b"]) for name in ("two", "three")] == ["a", "b"]
