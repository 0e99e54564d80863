# SPDX-License-Identifier: Apache-2.0
"""Whether programs of twelve kinds are slower or larger behind xlaunch."""
