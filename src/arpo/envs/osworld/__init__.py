"""OSWorld: real applications, real tasks and their real evaluators, in a light sandbox or a virtual machine."""
