create or replace view provenance.network_links as
  select id, topology_id, source_resource_id, target_resource_id, bandwidth_bits_per_second, latency_seconds,
    price_per_byte, bidirectional, sharing_policy,
    max_concurrent_transfers from network_links;
