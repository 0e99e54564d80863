# SPDX-License-Identifier: Apache-2.0
"""One batch over several streams: split among them, run side by side, joined again."""
