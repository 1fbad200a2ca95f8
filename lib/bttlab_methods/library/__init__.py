"""The methods; `bttlab_methods.registry` finds whatever is in the modules here.

To add one, copy the class that comes nearest, and override the hooks of `bttlab_methods.method.Method` that it needs.
"""
