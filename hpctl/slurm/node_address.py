"""Where a node is reached, by its name."""

from hpctl.vocabulary.instance_join import is_ip_address, parse_address_from_host_name

ASK_S = 10.0
"""How long slurmctld has to say where a node is."""


def find_node_address(name: str) -> str:
    """Return where a node is reached: the address that its name spells, else Slurm's NodeAddr.

    Where Slurm has none either: the name. Names by instance group (`gpu-compute-1`, with
    `UseInstanceNames`) resolve nowhere, or to an instance that was replaced since.
    """
    address = name if is_ip_address(name) else parse_address_from_host_name(name)
    if address:
        return address
    # Only where it is asked: the reader of Slurm's text doubles what a launcher imports.
    from hpctl.slurm.parse import parse_scontrol_nodes, split_scontrol_node_lines
    from hpctl.slurm.run import SlurmCommandRunner

    ran = SlurmCommandRunner(timeout=ASK_S).run("scontrol", "-o", "show", "node", name)
    known, _ = parse_scontrol_nodes(split_scontrol_node_lines(ran.text))
    return next((node.address for node in known if node.name == name and node.address), name)
