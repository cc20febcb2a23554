"""Everything outside Tower, one port an adapter: they know ports and core, and not each other."""
