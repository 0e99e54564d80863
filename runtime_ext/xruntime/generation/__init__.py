# SPDX-License-Identifier: Apache-2.0
"""Language models: `generate()` at the speed at which memory gives the weights.

A token's computation reads every weight once, and that takes the time. `linear_rows` reads them as fast as
memory allows; `language_models` says which models and calls it is for.
"""
