create or replace view provenance.activity_types as
  select id, name, application, default_image, cpu_intensity, memory_intensity, io_intensity,
    network_intensity from activity_types;
