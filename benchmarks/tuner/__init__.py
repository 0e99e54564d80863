# SPDX-License-Identifier: Apache-2.0
"""Recording spaces of configurations, and replaying searches on them."""
