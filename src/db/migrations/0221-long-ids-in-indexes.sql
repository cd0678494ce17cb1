-- An entry of an index has at most 2,704 bytes: too few for three ids of 255 characters of four bytes
-- each, or for a long label. A digest stands for the longer part.

alter table network_links drop constraint if exists network_links_pair;
create unique index if not exists network_links_pair
  on network_links (topology_id, md5(source_resource_id), md5(target_resource_id));

alter table activity_resource_profiles drop constraint if exists activity_resource_profiles_model;
create unique index if not exists activity_resource_profiles_model
  on activity_resource_profiles (activity_type_id, resource_id, md5(model_version));
