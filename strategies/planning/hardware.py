"""GPUs and links by name, with the fractions of their peaks that training reaches.

Sources: data sheets of NVIDIA for the A100 (80 GB, SXM), H100 (SXM), H200 and B200: dense matrix products in half
precision, memory, and NVLink in one direction; InfiniBand HDR (A100), NDR (H100, H200) and XDR (B200), one card for
each GPU; 100 Gb Ethernet, one card for eight GPUs. GPUs of 24 GB (A10, L4, RTX 4090) have no NVLink: they exchange over
PCI Express 4.0, and their hosts have 100 Gb Ethernet. The fractions were fitted on A100s only, see `step_time`: for
other GPUs they are assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

_GB = 1e9


@dataclass(frozen=True)
class Gpu:
    """A GPU and its share of a host's links. All rates are those that are reached, not peaks.

    Attributes:
        name: its name.
        flops_per_second: of matrix products in half precision.
        memory_bytes: its memory.
        memory_bytes_per_second: between the GPU and its memory.
        host_bytes_per_second: to other GPUs of the host, in one direction.
        network_bytes_per_second: to GPUs of other hosts, in one direction.
        offload_bytes_per_second: to the host's memory, in one direction.
    """

    name: str
    flops_per_second: float
    memory_bytes: float
    memory_bytes_per_second: float
    host_bytes_per_second: float
    network_bytes_per_second: float
    offload_bytes_per_second: float

    def matmul_seconds(self, flops: float, num_features: float) -> float:
        """Returns the seconds of matrix products, which are slower if a shard has few features.

        Args:
            flops: floating-point operations.
            num_features: the hidden size divided by the shards of a layer.
        """
        return flops * (1 + NARROW_FEATURES / num_features) / self.flops_per_second


#: The fraction of the peak that large matrix products, memory, NVLink (and PCI Express) and a network card reach.
MATMUL, MEMORY, NVLINK, NETWORK = 0.719, 0.714, 0.78, 0.88
#: The features of a shard with which matrix products take twice as long as at their best.
NARROW_FEATURES = 43.0


def _gpu(name: str, tflops: float, memory_gb: float, memory: float, peer: float, network: float, pcie: float) -> Gpu:
    return Gpu(
        name,
        MATMUL * tflops * 1e12,
        memory_gb * _GB,
        MEMORY * memory * _GB,
        NVLINK * peer * _GB,
        NETWORK * network * _GB,
        NVLINK * pcie * _GB,
    )


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("A100", 312, 80, 2039, 300, 25, 32),
        _gpu("H100", 989.4, 80, 3350, 450, 50, 64),
        _gpu("H200", 989.4, 141, 4800, 450, 50, 64),
        _gpu("B200", 2250, 180, 7700, 900, 100, 64),
        _gpu("A10", 125, 24, 600, 32, 12.5 / 8, 32),
        _gpu("L4", 121, 24, 300, 32, 12.5 / 8, 32),
        _gpu("RTX4090", 165.2, 24, 1008, 32, 12.5 / 8, 32),
    )
}
#: Networks in place of the GPU's own: bytes per second for each GPU, in one direction.
NETWORKS: Mapping[str, float] = {
    "infiniband-hdr": NETWORK * 25 * _GB,
    "infiniband-ndr": NETWORK * 50 * _GB,
    "infiniband-xdr": NETWORK * 100 * _GB,
    "ethernet-100": NETWORK * 12.5 * _GB / 8,
}


def gpu_of(name: str, network: str | None = None) -> Gpu:
    """Returns a GPU by name, with another network if one is named.

    Args:
        name: a key of `GPUS`.
        network: a key of `NETWORKS`; None for the one that hosts with this GPU usually have.

    Raises:
        ValueError: a name is unknown.

    Example:

        gpu = gpu_of("H100", "ethernet-100")
    """
    if name not in GPUS or (network is not None and network not in NETWORKS):
        raise ValueError(
            f"The known GPUs are {', '.join(GPUS)}, and the known networks {', '.join(NETWORKS)}. "
            f"Received: gpu={name!r}, network={network!r}."
        )
    return GPUS[name] if network is None else replace(GPUS[name], network_bytes_per_second=NETWORKS[network])
