# SPDX-License-Identifier: Apache-2.0
"""What is searched: parameters, configurations, and what they come to on a machine."""
