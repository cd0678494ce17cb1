create or replace view provenance.activity_resource_profiles as
  select id, activity_type_id, resource_id, runtime_seconds, runtime_stddev_seconds, cpu_utilization,
    peak_memory_bytes, disk_read_bytes, disk_write_bytes,
    energy_joules, source, sample_size, model_version from activity_resource_profiles;
