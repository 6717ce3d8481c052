"""The command line: flags in, exit status out. The only package that knows every other one."""
