"""The methods, a module each; `bttlab_methods.registry` finds whatever is here.

To add one, copy the module that comes nearest, and override the hooks of `bttlab_methods.method.Method` that it needs.
"""
