create or replace view provenance.resources as
  select id, environment_version_id, execution_target, parent_resource_id, type, name, provider_id, tier,
    region, zone, architecture, cpu_cores, cpu_capacity,
    memory_bytes, storage_bytes, compute_speedup, price_per_second, boot_overhead_seconds,
      container_overhead_seconds, schedulable from resources;
