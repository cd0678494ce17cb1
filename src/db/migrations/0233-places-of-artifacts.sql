-- Every complete upload and every job that overwrites asks for the artifacts at a place.

create index if not exists artifact_locations_of_uri on artifact_locations (uri);
