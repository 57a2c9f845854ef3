from desktop_env.guests import world


def get_vm_file(env, config):
    return env.controller.get_file(config["path"])


def get_value(env, config):
    world.note("judged")
    return config["value"]


def get_rule(env, config):
    return config["rules"]


def get_fatal(env, config):
    """The guest dies while it is asked, which the real getters log and pass over."""
    world.alive = False
    return env.controller.get_file(config["path"])


def get_answer(env, config):
    return env.controller.execute_python_command("print(1)")["output"]
