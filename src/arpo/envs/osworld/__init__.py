"""OSWorld: real applications, tasks and evaluators, in a light sandbox or a virtual machine."""
