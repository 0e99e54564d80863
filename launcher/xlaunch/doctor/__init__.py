# SPDX-License-Identifier: Apache-2.0
"""The doctor: checks of the machine, faults in scripts, and the devices that a program uses."""
