# SPDX-License-Identifier: Apache-2.0
"""The operators of DLRM and vision beside torch's, torchvision's and IPEX's."""
