# SPDX-License-Identifier: Apache-2.0
"""Run the instances of a plan, end them, and leave no process behind."""
