# SPDX-License-Identifier: Apache-2.0
"""`xlaunch --optimize`: applies `xruntime.optimize` to the models of a program that is not changed.

`startup` is found by Python when the program starts, and starts `interception` after torch was
imported. `interception` sees each outermost call of a module. `refusals` says which calls are left alone,
`routed` calls the optimized form.
"""
