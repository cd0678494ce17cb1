create or replace view provenance.resource_snapshots as
  select id, resource_id, captured_at, available, cpu_used, memory_used_bytes, network_in_bps,
    network_out_bps, disk_read_bps, disk_write_bps, queue_length
  from resource_snapshots;
