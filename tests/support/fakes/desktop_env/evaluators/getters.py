from desktop_env.guests import machine


def get_vm_file(env, config):
    return env.controller.get_file(config["path"])


def get_value(env, config):
    machine.record("evaluated")
    return config["value"]


def get_rule(env, config):
    return config["rules"]


def get_fatal(env, config):
    """The guest dies during the call. The real getters only log it."""
    machine.alive = False
    return env.controller.get_file(config["path"])


def get_answer(env, config):
    return env.controller.execute_python_command("print(1)")["output"]
